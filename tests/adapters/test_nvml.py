"""The driver's counters, read with the real binding from a stand-in for the driver's library."""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.nvml import readings as nvml
from pytest_gpuleak.adapters.nvml.device_order import PhysicalDevice, match_devices
from pytest_gpuleak.adapters.nvml.process_identity import Family, Identity, identify, own_identity
from pytest_gpuleak.adapters.nvml.readings import Nvml, NvmlReading, outside
from pytest_gpuleak.model.readings import ProbeUnavailable
from tests.conftest import forget_torch
from tests.support.nvml import GIB, A, a_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.nvml import DriverState

MIB = 1 << 20
NOT_AVAILABLE = (1 << 64) - 1
B = "GPU-bbbbbbbb-0000-0000-0000-000000000002"
PART, OTHER_PART = "MIG-cccccccc-0000-0000-0000-000000000003", "MIG-dddddddd-0000-0000-0000-000000000004"


@pytest.fixture
def driver(nvml_state: DriverState) -> DriverState:
    """The binding, with the stand-in loaded in place of the driver's library."""
    return nvml_state


@pytest.fixture
def probe(driver: DriverState) -> Iterator[Callable[..., Nvml]]:
    """Starts a probe on a machine."""
    started: list[Nvml] = []

    def start(*lines: str) -> Nvml:
        if lines:
            driver.say(*lines)
        new = Nvml()
        started.append(new)
        new.start()
        return new

    yield start
    for one in started:
        one.stop()


def test_this_process_its_children_and_others_are_told_apart(driver: DriverState, probe: Callable[..., Nvml]) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        reading = probe(
            a_device(),
            f"process {A} compute {os.getpid()} {300 * MIB}",
            f"process {A} compute {child.pid} {200 * MIB}",
            f"process {A} graphics 1 {10 * MIB}",
            f"process {A} compute 4194999 {5 * MIB}",
        ).read()["cuda:0"]
    finally:
        child.communicate(b"\n")
    assert (reading.uuid, reading.model, reading.total, reading.used) == (A, "Test GPU", 80 * GIB, GIB)
    assert (reading.own, reading.why_absent) == (300 * MIB, "")
    assert [(row.pid, row.bytes) for row in reading.children] == [(child.pid, 200 * MIB)]
    assert [(row.pid, row.bytes) for row in reading.others] == [(1, 10 * MIB), (4194999, 5 * MIB)]
    assert reading.others[0].name
    assert reading.others[1].name is None
    assert outside(reading, 100 * MIB) == 200 * MIB


def test_figures_follow_the_driver_while_it_runs(driver: DriverState, probe: Callable[..., Nvml]) -> None:
    running = probe()
    assert running.read()["cuda:0"].own == 0
    driver.say(a_device(used=3 * GIB), f"process {A} compute {os.getpid()} {2 * GIB}")
    reading = running.read()["cuda:0"]
    assert (reading.used, reading.own) == (3 * GIB, 2 * GIB)


def test_a_process_in_both_lists_is_counted_once_and_one_in_two_partitions_is_summed(
    probe: Callable[..., Nvml],
) -> None:
    reading = probe(
        a_device(),
        f"process {A} compute {os.getpid()} {300 * MIB}",
        f"process {A} graphics {os.getpid()} {300 * MIB}",
        f"process {A} compute 1 {MIB} 1 0",
        f"process {A} compute 1 {MIB} 2 0",
    ).read()["cuda:0"]
    assert reading.own == 300 * MIB
    assert [row.bytes for row in reading.others] == [2 * MIB]


@pytest.mark.parametrize("figure", [NOT_AVAILABLE, NOT_AVAILABLE - 4095, 1 << 63])
def test_a_figure_that_is_none_is_absent(probe: Callable[..., Nvml], figure: int) -> None:
    reading = probe(
        f"device {A} 00000000:01:00.0 {80 * GIB} {figure} -1 Test GPU",
        f"process {A} compute {os.getpid()} {figure}",
        f"process {A} compute 1 {figure}",
    ).read()["cuda:0"]
    assert (reading.total, reading.used, reading.own) == (80 * GIB, None, None)
    assert [row.bytes for row in reading.others] == [None]
    assert "no figure" in reading.why_absent
    assert outside(reading, 0) is None


def test_what_the_driver_refuses_is_absent_and_no_fault(probe: Callable[..., Nvml]) -> None:
    running = probe(
        a_device(),
        "error nvmlDeviceGetComputeRunningProcesses 3",
        "error nvmlDeviceGetGraphicsRunningProcesses 4",
        "error nvmlDeviceGetMemoryInfo 3",
    )
    reading = running.read()["cuda:0"]
    assert (reading.total, reading.used, reading.own, running.fault) == (None, None, None, "")
    assert reading.why_absent == "not visible: the NVIDIA driver does not support it here"


def test_a_process_that_the_driver_may_not_see_is_absent_and_not_zero(
    probe: Callable[..., Nvml], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "own_identity", lambda: Identity((os.getpid(),), False, "not visible: a reason"))
    reading = probe(a_device(), f"process {A} compute 1 {MIB}").read()["cuda:0"]
    assert (reading.own, reading.why_absent) == (None, "not visible: a reason")


@pytest.mark.parametrize(
    ("status", "namespace", "release", "pids", "visible"),
    [
        ("Name:\tpython\nNSpid:\t77\n", "pid:[4026531836]", "6.1", (77,), True),
        ("NSpid:\t77\n", "pid:[4026532999]", "6.1", (77,), False),
        ("NSpid:\t40123\t77\n", "pid:[4026532999]", "6.1", (40123, 77), False),
        ("NSpid:\t77\n", "pid:[4026531836]", "5.15.90.1-microsoft-standard-WSL2", (77,), False),
        ("", "", "23.1.0", (77,), True),
        ("NSpid:\tnonsense\n", "", "6.1", (77,), True),
    ],
)
def test_who_this_process_is_for_the_driver(
    status: str, namespace: str, release: str, pids: tuple[int, ...], visible: bool
) -> None:
    found = identify(77, status, namespace, release)
    assert (found.pids, found.visible) == (pids, visible)
    assert bool(found.why) is not visible


def test_a_pid_of_an_outer_namespace_is_found(probe: Callable[..., Nvml], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "own_identity", lambda: Identity((4194998, os.getpid()), False, "unused"))
    reading = probe(a_device(), f"process {A} compute 4194998 {MIB}").read()["cuda:0"]
    assert (reading.own, reading.why_absent, reading.others) == (MIB, "", ())


def test_more_than_torch_reserved_is_outside_and_less_is_no_figure() -> None:
    reading = NvmlReading(A, "Test GPU", 80 * GIB, GIB, own=500 * MIB)
    assert outside(reading, 0) == 500 * MIB
    assert outside(reading, 500 * MIB) == 0
    assert outside(reading, 501 * MIB) is None


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["error nvmlInit 9"], "the NVIDIA driver is not loaded"),
        (["error nvmlInit 4"], "no permission to ask the NVIDIA driver"),
        (["error nvmlInit 12"], "the NVIDIA driver's library is not installed (libnvidia-ml)"),
        (["error nvmlInit 18"], "the NVIDIA driver and its library differ in version"),
        (["error nvmlInit 999"], "Unknown Error"),
        ([""], "the NVIDIA driver shows no device"),
        ([a_device(), "error nvmlDeviceGetHandleByIndex 4"], "the NVIDIA driver shows no device"),
        ([a_device(), "error nvmlDeviceGetCount 15"], "the GPU is lost"),
    ],
)
def test_why_nothing_can_be_read(
    driver: DriverState, probe: Callable[..., Nvml], lines: list[str], reason: str
) -> None:
    with pytest.raises(ProbeUnavailable, match="^" + reason.replace("(", r"\(").replace(")", r"\)") + "$"):
        probe(*lines)
    assert driver.opened == 0


def test_no_binding_and_no_visible_device(
    driver: DriverState, probe: Callable[..., Nvml], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(ProbeUnavailable, match=r"no device is visible \(CUDA_VISIBLE_DEVICES is '-1'\)"):
        probe()
    assert driver.opened == 0
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ProbeUnavailable, match="nvidia-ml-py is not installed"):
        probe()


@pytest.mark.parametrize("code", [15, 9, 16, 999])
def test_a_driver_that_fails_in_mid_run_ends_the_probe_once(
    driver: DriverState, probe: Callable[..., Nvml], code: int
) -> None:
    running = probe()
    driver.say(a_device(), f"error nvmlDeviceGetMemoryInfo {code}")
    assert running.read() == {}
    fault = running.fault
    assert fault.startswith("NVML failed and is no longer read: ")
    driver.say(a_device())
    assert running.read() == {}
    assert (running.fault, driver.opened) == (fault, 0)


def test_a_device_that_disappears_ends_the_probe(driver: DriverState, probe: Callable[..., Nvml]) -> None:
    running = probe(a_device(), a_device(B, "00000000:02:00.0"))
    assert list(running.read()) == ["cuda:0", "cuda:1"]
    driver.say(a_device())
    assert running.read() == {}
    assert running.fault.endswith("the GPU is lost")


def test_a_library_that_somebody_closed_is_opened_again(driver: DriverState, probe: Callable[..., Nvml]) -> None:
    running = probe()
    import pynvml

    pynvml.nvmlShutdown()
    assert running.read()["cuda:0"].total == 80 * GIB
    assert (running.fault, driver.opened) == ("", 1)
    running.stop()
    running.stop()
    assert driver.opened == 0


def test_a_users_own_use_of_the_library_stays_open(driver: DriverState, probe: Callable[..., Nvml]) -> None:
    import pynvml

    pynvml.nvmlInit()
    probe().stop()
    assert pynvml.nvmlDeviceGetCount() == 1
    pynvml.nvmlShutdown()


def test_partitions_have_their_own_figures(probe: Callable[..., Nvml], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", OTHER_PART)
    running = probe(
        a_device(mig=1),
        f"part {A} 0 {PART} {10 * GIB} {GIB}",
        f"part {A} 2 {OTHER_PART} {20 * GIB} {2 * GIB}",
        f"process {PART} compute 1 {MIB} 1 0",
        f"process {OTHER_PART} compute {os.getpid()} {3 * MIB} 2 0",
    )
    (reading,) = running.read().values()
    assert (reading.uuid, reading.model, reading.total, reading.own) == (
        OTHER_PART,
        "Test GPU (MIG)",
        20 * GIB,
        3 * MIB,
    )
    assert reading.others == ()


def test_torchs_own_uuids_win_over_the_environment(probe: Callable[..., Nvml], monkeypatch: pytest.MonkeyPatch) -> None:
    running = probe(a_device(A, "00000000:01:00.0"), a_device(B, "00000000:02:00.0", model="Another GPU"))
    assert running.read() == {}  # which is the faster one is not known
    monkeypatch.setattr(nvml, "framework_uuids", lambda: [B.removeprefix("GPU-"), A.removeprefix("GPU-"), "unknown"])
    assert {name: reading.uuid for name, reading in running.read().items()} == {"cuda:0": B, "cuda:1": A}
    assert running.fault == ""


def test_torchs_uuid_of_a_whole_device_stands_for_the_part_that_is_used(
    probe: Callable[..., Nvml], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "framework_uuids", lambda: [A.removeprefix("GPU-")])
    running = probe(a_device(mig=1), f"part {A} 1 {PART} {10 * GIB} {GIB}")
    assert running.read()["cuda:0"].uuid == PART


def test_torch_is_asked_only_once_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    started = False
    uuids = ["aaaaaaaa", "bbbbbbbb"]

    def properties(index: int) -> Any:
        assert started
        return types.SimpleNamespace(uuid=uuids[index])

    cuda = types.SimpleNamespace(
        is_initialized=lambda: started, device_count=lambda: len(uuids), get_device_properties=properties
    )
    forget_torch(monkeypatch)
    torch: Any = types.ModuleType("torch")
    torch.cuda, torch._C = cuda, types.ModuleType("torch._C")
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert nvml.framework_uuids() is None
    started = True
    assert nvml.framework_uuids() == uuids
    cuda.get_device_properties = lambda index: types.SimpleNamespace(name="no uuid")
    assert nvml.framework_uuids() is None
    torch.version = types.SimpleNamespace(hip="6.2")
    assert nvml.framework_uuids() == []
    monkeypatch.delitem(sys.modules, "torch")
    assert nvml.framework_uuids() is None


ONE_KIND = [
    PhysicalDevice("GPU-22", "H100", "00000000:02:00.0"),
    PhysicalDevice("GPU-11", "H100", "00000000:01:00.0"),
    PhysicalDevice("GPU-12", "H100", "00000000:03:00.0"),
]
TWO_KINDS = [*ONE_KIND[:2], PhysicalDevice("GPU-33", "T4", "00000000:04:00.0")]
PARTITIONED = [
    PhysicalDevice("GPU-11", "H100", "00000000:01:00.0"),
    PhysicalDevice("GPU-22", "H100", "00000000:02:00.0", ("MIG-a1", "MIG-a2")),
    PhysicalDevice("GPU-33", "H100", "00000000:03:00.0", ()),
]


@pytest.mark.parametrize(
    ("devices", "visible", "order", "expected"),
    [
        (ONE_KIND, None, None, ["GPU-11", "GPU-22", "GPU-12"]),
        (ONE_KIND, "", None, []),
        (ONE_KIND, "2,0", None, ["GPU-12", "GPU-11"]),
        (ONE_KIND, " 1 ,+0", None, ["GPU-22", "GPU-11"]),
        (ONE_KIND, "1gpu2,2ampere", None, ["GPU-22", "GPU-12"]),
        (ONE_KIND, "0,-1,1", None, ["GPU-11"]),
        (ONE_KIND, "0,7,1", None, ["GPU-11"]),
        (ONE_KIND, "0,,1", None, ["GPU-11"]),
        (ONE_KIND, "0,1,0", None, []),
        (ONE_KIND, "nonsense", None, []),
        (ONE_KIND, "GPU-22,GPU-11", None, ["GPU-22", "GPU-11"]),
        (ONE_KIND, "GPU-2", None, ["GPU-22"]),
        (ONE_KIND, "GPU-22,GPU-1,GPU-12", None, ["GPU-22"]),
        (ONE_KIND, "GPU-22,0", None, ["GPU-22"]),
        (ONE_KIND, "GPU-22,GPU-2", None, []),
        (TWO_KINDS, "1,0", None, None),
        (TWO_KINDS, "1,0", "FASTEST_FIRST", None),
        (TWO_KINDS, "1,0", "PCI_BUS_ID", ["GPU-22", "GPU-11"]),
        (TWO_KINDS, "GPU-33", None, ["GPU-33"]),
        (PARTITIONED, None, None, ["MIG-a1"]),
        (PARTITIONED, "0", None, ["GPU-11"]),
        (PARTITIONED, "0,1", None, ["MIG-a1"]),
        (PARTITIONED, "2", None, []),
        (PARTITIONED, "MIG-a2,MIG-a1", None, ["MIG-a2"]),
        (PARTITIONED, "MIG-a", None, []),
        (PARTITIONED, "GPU-22", None, ["MIG-a1"]),
        ([], None, None, []),
    ],
)
def test_logical_devices(
    devices: list[PhysicalDevice], visible: str | None, order: str | None, expected: list[str] | None
) -> None:
    assert match_devices(devices, visible, order) == expected


def test_a_name_of_another_process_cannot_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    monkeypatch.setattr(psutil.Process, "name", lambda process: "evil\x1b[2Jname")
    assert Family([os.getpid()]).name_of(os.getpid()) == "evil\\x1b[2Jname"


def test_the_binding_finds_the_library_by_its_own_name(nvml_library: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pynvml")
    state = tmp_path / "state"
    script = (
        "import os; from pytest_gpuleak.adapters.nvml.readings import Nvml\n"
        f"open({str(state)!r}, 'w').write({a_device()!r} + f'process {A} compute {{os.getpid()}} 4096')\n"
        "probe = Nvml(); probe.start(); print(probe.read()['cuda:0'].own); probe.stop()"
    )
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(nvml_library.parent),
        "NVML_STANDIN": str(state),
        "PYTHONPATH": str(pathlib.Path(__file__).parent.parent.parent),
        "CUDA_VISIBLE_DEVICES": "0",
    }
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=30
    )
    assert result.stdout.split() == ["4096"]


def test_a_machine_without_the_driver_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pynvml = pytest.importorskip("pynvml")

    def no_library(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", no_library)
    with pytest.raises(ProbeUnavailable, match=r"^the NVIDIA driver's library is not installed \(libnvidia-ml\)$"):
        Nvml().start()
    monkeypatch.delitem(sys.modules, "pynvml")
    monkeypatch.setattr(ctypes, "CDLL", no_library)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(ProbeUnavailable, match=r"^the NVIDIA driver's library is not installed \(libnvidia-ml\)$"):
        Nvml().start()
    assert "pynvml" not in sys.modules


def test_this_very_process_knows_its_own_pid() -> None:
    identity = own_identity()
    assert identity.pids[-1] == os.getpid()
    assert identity.visible is not bool(identity.why)
