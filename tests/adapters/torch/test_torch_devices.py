"""The probe of torch's devices: what it reads, what it refuses to read, and that users' peaks stay as they are.

CUDA is a stand-in with the functions that the probe and users of `torch.cuda` call; other devices are the simulated
accelerator's. `tests/gpu` shows the same on a real device.
"""

from __future__ import annotations

import functools
import gc
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.probe_protocol import DeviceReading
from pytest_gpuleak.adapters.torch.device_facts import device_names
from pytest_gpuleak.adapters.torch.devices import TorchDevices, checked
from pytest_gpuleak.adapters.torch.settle_steps import device_steps
from pytest_gpuleak.engine.detect.peak_meter import PeakMeter
from pytest_gpuleak.model.peaks import Peak
from tests.conftest import forget_torch
from tests.support import simgpu

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20


class StandInCuda:
    """CUDA's allocator as torch's C functions show it. `touched` notes what would create a context."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, devices: int = 2) -> None:
        self.initialised = True
        self.contexts = {0}
        self.backend, self.enabled, self.capturing = "native", True, False
        self.allocated, self.peaks = [0] * devices, [0] * devices
        self.private_pools: list[tuple[int, int]] = []
        self.calls: list[Any] = []
        torch, native = ModuleType("torch"), ModuleType("torch._C")
        functions: dict[str, Any] = {
            "_cuda_memoryStats": self.statistics,
            "_cuda_resetPeakMemoryStats": self.reset,
            "_accelerator_getDeviceStats": self.statistics,
            "_accelerator_resetPeakStats": self.reset,
            "_cuda_getDeviceCount": lambda: devices,
            "_cuda_hasPrimaryContext": lambda index: index in self.contexts,
            "_cuda_getAllocatorBackend": lambda: self.backend,
            "_cuda_cudaCachingAllocator_is_enabled": lambda: self.enabled,
            "_cuda_clearCublasWorkspaces": lambda: self.calls.append("workspaces"),
            "_host_emptyCache": lambda: self.calls.append("pinned"),
            "_has_mps": False,
        }
        vars(native).update(functions)
        cuda = SimpleNamespace(
            is_initialized=lambda: self.initialised,
            is_current_stream_capturing=lambda: self.capturing,
            synchronize=lambda index: self.calls.append(("synchronize", index)),
        )
        members: dict[str, Any] = {
            "_C": native,
            "cuda": cuda,
            "_cufft_get_plan_cache_size": lambda index: 3,
            "_cufft_clear_plan_cache": lambda index: self.calls.append(("plans", index)),
        }
        vars(torch).update(members)
        self.torch = torch
        monkeypatch.setitem(sys.modules, "torch", torch)

    def allocate(self, index: int, size: int) -> None:
        """Use so much more of a device, or less."""
        self.contexts.add(index)
        self.allocated[index] += size
        self.peaks[index] = max(self.peaks[index], self.allocated[index])

    def statistics(self, index: int) -> dict[str, Any]:
        """What torch returns, in part."""
        if index not in self.contexts:
            self.calls.append(("touched", index))
        current, peak = self.allocated[index], self.peaks[index]
        stat = {"current": current, "peak": peak, "allocated": peak, "freed": peak - current}
        pools = {"all": stat, "small_pool": dict(stat), "large_pool": dict(stat)}
        asked = 0 if self.backend != "native" else current
        return {
            "allocated_bytes": pools,
            "reserved_bytes": {"all": {"current": 2 * current, "peak": 2 * peak}},
            "active_bytes": {"all": {"current": current, "peak": peak}},
            "requested_bytes": {"all": {"current": asked, "peak": asked}},
            "oversize_segments": {"current": current, "peak": peak},
            "reserved_bytes_by_private_pools": {pool: {"all": dict(stat)} for pool in self.private_pools},
            "num_ooms": 0,
        }

    def reset(self, index: int) -> None:
        """Set the peaks back."""
        if index not in self.contexts:
            self.calls.append(("touched", index))
        self.peaks[index] = self.allocated[index]

    def users_peak(self, index: int = 0) -> int:
        """As `torch.cuda.max_memory_allocated` reads it."""
        return int(self.torch._C._cuda_memoryStats(index)["allocated_bytes"]["all"]["peak"])

    def users_reset(self, index: int = 0) -> None:
        """As `torch.cuda.reset_peak_memory_stats` does it."""
        self.torch._C._cuda_resetPeakMemoryStats(index)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> StandInCuda:
    monkeypatch.delenv("PYTORCH_NO_CUDA_MEMORY_CACHING", raising=False)
    forget_torch(monkeypatch)
    return StandInCuda(monkeypatch)


@pytest.fixture
def probe() -> Iterator[TorchDevices]:
    probe = TorchDevices()
    yield probe
    probe.stop()


@pytest.fixture
def torch() -> Iterator[Any]:
    """torch with fresh simulated devices."""
    module = pytest.importorskip("torch")
    simgpu.install()
    gc.collect()
    simgpu.reset()
    yield module
    simgpu.reset()


def test_without_torch_there_is_nothing_to_read(monkeypatch: pytest.MonkeyPatch, probe: TorchDevices) -> None:
    forget_torch(monkeypatch)
    probe.begin_peaks()
    assert (probe.read(), probe.first_used, probe.absent, device_steps()) == ({}, frozenset(), {}, [])
    assert "torch" not in sys.modules


def test_what_a_test_puts_in_torchs_place_is_not_asked(monkeypatch: pytest.MonkeyPatch, probe: TorchDevices) -> None:
    class Hostile:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

    forget_torch(monkeypatch)
    monkeypatch.setitem(sys.modules, "torch", Hostile())
    assert (probe.read(), device_steps()) == ({}, [])


def test_a_device_that_the_process_has_not_used_is_not_touched(cuda: StandInCuda, probe: TorchDevices) -> None:
    cuda.initialised = False
    probe.begin_peaks()
    assert (probe.read(), list(device_steps())) == ({}, [])
    cuda.initialised = True
    cuda.allocate(0, 512)
    probe.begin_peaks()
    assert set(probe.read()) == {"cuda:0"}
    for step in device_steps():
        list(step.steps())
    assert not [call for call in cuda.calls if call[0] == "touched" or call == ("synchronize", 1)]


def test_a_device_with_an_expandable_segment_alone_is_read_and_given_no_context(
    cuda: StandInCuda, probe: TorchDevices
) -> None:
    cuda.allocated[1] = cuda.peaks[1] = MIB
    vars(cuda.torch.cuda)["mem_get_info"] = lambda index: cuda.calls.append(("asked", index))
    assert probe.read() == {}
    vars(cuda.torch._C)["_accelerator_getAllocatorSettings"] = lambda: "expandable_segments:True"
    again = TorchDevices()
    assert again.read()["cuda:1"].allocated == MIB
    assert (again.used("cuda:1"), ("asked", 1) in cuda.calls) == (None, False)


def test_the_names_of_devices_initialise_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the driver is initialised, a process that is forked cannot use CUDA: a report's environment asked for it."""
    forget_torch(monkeypatch)
    module: Any = ModuleType("torch")
    asked: list[str] = []
    module._C = ModuleType("torch._C")
    module.cuda = SimpleNamespace(is_initialized=lambda: False, is_available=lambda: asked.append("is_available"))
    monkeypatch.setitem(sys.modules, "torch", module)
    assert device_names() == []
    assert asked == []


def test_cudas_figures_and_first_uses(cuda: StandInCuda, probe: TorchDevices) -> None:
    assert probe.read() == {}  # a context, and no memory
    cuda.allocate(0, 512)
    assert probe.read() == {"cuda:0": DeviceReading(allocated=512, requested=512, reserved=1024, active=512)}
    assert probe.first_used == {"cuda:0"}
    cuda.allocate(0, -512)
    cuda.allocate(1, 1024)
    assert {name: reading.allocated for name, reading in probe.read().items()} == {"cuda:0": 0, "cuda:1": 1024}
    assert probe.first_used == {"cuda:1"}


def test_what_cuda_malloc_async_does_not_count_is_absent(cuda: StandInCuda, probe: TorchDevices) -> None:
    cuda.backend = "cudaMallocAsync"
    cuda.allocate(0, 512)
    assert probe.read() == {"cuda:0": DeviceReading(allocated=512, reserved=1024)}


@pytest.mark.parametrize("reason", ["PYTORCH_NO_CUDA_MEMORY_CACHING", "pluggable", "disabled"])
def test_where_the_allocator_counts_nothing_there_is_no_reading(
    cuda: StandInCuda, probe: TorchDevices, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    cuda.allocate(0, 512)
    assert probe.read()
    if reason == "disabled":
        cuda.enabled = False
    elif reason == "pluggable":
        cuda.backend = reason
    else:
        monkeypatch.setenv(reason, "1")
    assert probe.read() == {}
    assert reason in probe.absent["cuda"]


def test_the_users_peak_stays_while_ours_begins_anew(cuda: StandInCuda, probe: TorchDevices) -> None:
    cuda.allocate(0, 100 * MIB)
    cuda.allocate(0, -90 * MIB)
    probe.begin_peaks()
    cuda.allocate(0, 20 * MIB)
    cuda.allocate(0, -20 * MIB)
    assert probe.read()["cuda:0"].peak == 30 * MIB
    assert probe.read()["cuda:0"].reserved_peak == 60 * MIB
    assert cuda.users_peak() == 100 * MIB
    assert cuda.torch._C._accelerator_getDeviceStats(0)["reserved_bytes"]["all"]["peak"] == 200 * MIB
    cuda.allocate(0, 200 * MIB)
    assert cuda.users_peak() == 210 * MIB
    assert probe.read()["cuda:0"].peak == 210 * MIB


def test_the_users_peaks_of_private_pools_stay_too(cuda: StandInCuda, probe: TorchDevices) -> None:
    cuda.allocate(0, MIB)
    probe.begin_peaks()
    cuda.private_pools = [(1, 0)]  # as when a graph has been captured
    cuda.allocate(0, 99 * MIB)
    cuda.allocate(0, -90 * MIB)
    probe.begin_peaks()
    statistics = cuda.torch._C._cuda_memoryStats(0)
    assert statistics["reserved_bytes_by_private_pools"] == {
        (1, 0): {"all": {"current": 10 * MIB, "peak": 100 * MIB, "allocated": 10 * MIB, "freed": 0}}
    }
    assert statistics["oversize_segments"] == {"current": 10 * MIB, "peak": 100 * MIB}
    cuda.private_pools = []
    assert cuda.torch._C._cuda_memoryStats(0)["reserved_bytes_by_private_pools"] == {}


@pytest.mark.parametrize("function", ["_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"])
def test_a_users_reset_resets_his_peak_and_not_ours(cuda: StandInCuda, probe: TorchDevices, function: str) -> None:
    cuda.allocate(0, 100 * MIB)
    probe.begin_peaks()
    cuda.allocate(0, -90 * MIB)
    getattr(cuda.torch._C, function)(0)
    assert cuda.users_peak() == 10 * MIB
    assert probe.read()["cuda:0"].peak == 100 * MIB
    probe.begin_peaks()
    assert probe.read()["cuda:0"].peak == 10 * MIB
    cuda.allocate(0, 5 * MIB)
    assert cuda.users_peak() == 15 * MIB


def test_peaks_of_a_device_first_used_in_between(cuda: StandInCuda, probe: TorchDevices) -> None:
    probe.begin_peaks()
    cuda.allocate(1, MIB)
    cuda.allocate(1, -MIB)
    assert probe.read()["cuda:1"].peak == MIB
    assert not [call for call in cuda.calls if call[0] == "touched"]


def test_the_meter_has_the_peaks_of_a_device_that_nothing_had_used_when_it_began(
    cuda: StandInCuda, probe: TorchDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch: Any = sys.modules["torch"]
    module: Any = ModuleType("torch.cuda")
    vars(module).update(vars(torch.cuda), _initialized=False)
    monkeypatch.setattr(torch, "cuda", module)
    cuda.initialised = False
    meter = PeakMeter([probe])
    meter.begin()
    cuda.initialised = module._initialized = True
    cuda.allocate(0, MIB)
    cuda.allocate(0, -MIB)
    assert meter.peaks()["cuda:0"].allocated == Peak(0, MIB, MIB, exact=True)


def test_stop_puts_the_functions_back_and_leaves_what_wraps_ours(cuda: StandInCuda, probe: TorchDevices) -> None:
    native = cuda.torch._C
    before = dict(vars(native))
    cuda.allocate(0, MIB)
    probe.begin_peaks()
    ours = native._cuda_memoryStats
    native._cuda_memoryStats = wrapped = functools.partial(ours)
    probe.stop()
    probe.stop()
    assert native._cuda_memoryStats is wrapped
    assert wrapped(0)["allocated_bytes"]["all"]["peak"] == MIB
    native._cuda_memoryStats = before["_cuda_memoryStats"]
    assert dict(vars(native)) == before
    assert probe.read()["cuda:0"].peak is None


def test_a_run_within_a_run_blinds_neither(cuda: StandInCuda, probe: TorchDevices) -> None:
    cuda.allocate(0, 100 * MIB)
    probe.begin_peaks()
    inner = TorchDevices()
    cuda.allocate(0, -50 * MIB)
    inner.begin_peaks()
    cuda.allocate(0, 10 * MIB)
    cuda.allocate(0, -10 * MIB)
    assert inner.read()["cuda:0"].peak == 60 * MIB
    assert cuda.users_peak() == 100 * MIB
    inner.stop()
    assert probe.read()["cuda:0"].peak == 100 * MIB
    assert cuda.users_peak() == 60 * MIB  # the inner run, which is over, has reset it


@pytest.mark.parametrize(
    ("figures", "reading"),
    [
        ({"allocated": -512}, None),
        ({"allocated": 1 << 63}, None),
        ({"allocated": None}, None),
        ({"allocated": True}, None),
        ({"allocated": 5.0}, None),
        ({"allocated": (1 << 63) - 1}, DeviceReading((1 << 63) - 1)),
        ({"allocated": 512, "reserved": -1, "active": 1 << 64, "peak": -5}, DeviceReading(512)),
        ({"allocated": 512, "reserved": 100, "active": 100, "peak": 100, "requested": 600}, DeviceReading(512)),
        ({"allocated": 0, "reserved": 1024, "reserved_peak": 512}, DeviceReading(0, reserved=1024)),
        (
            {"allocated": 512, "requested": 4, "reserved": 1024, "active": 512, "peak": 512, "reserved_peak": 1024},
            DeviceReading(512, 4, 1024, 512, 512, 1024),
        ),
    ],
)
def test_figures_that_cannot_be_are_absent(figures: dict[str, Any], reading: DeviceReading | None) -> None:
    assert checked(figures) == reading


def test_settle_steps_wait_then_clear_what_the_libraries_keep(cuda: StandInCuda, probe: TorchDevices) -> None:
    cuda.allocate(0, 512)
    for step in device_steps():
        assert not step.collects
        assert list(step.steps()) == [None]
    assert cuda.calls == [("synchronize", 0), "workspaces", ("synchronize", 0), ("plans", 0), "pinned"]


def test_settle_steps_leave_a_capture_alone_and_a_failing_device_to_the_reading(cuda: StandInCuda) -> None:
    cuda.capturing = True
    settle_steps = device_steps()
    assert [list(step.steps()) for step in settle_steps] == [[], [], [], []]
    assert cuda.calls == []
    cuda.capturing = False

    def fail(index: int) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    cuda.torch.cuda.synchronize = fail
    assert list(settle_steps[0].steps()) == []


def test_xpu_by_the_functions_below_its_module(cuda: StandInCuda, probe: TorchDevices) -> None:
    native, module = cuda.torch._C, ModuleType("torch.xpu")
    cuda.initialised = False
    native._xpu_memoryStats, native._xpu_resetPeakMemoryStats = cuda.statistics, cuda.reset

    def statistics(index: int) -> Any:
        return native._xpu_memoryStats(index)  # by its name, as torch.xpu does, and so through the view

    def reset(index: int) -> None:
        native._xpu_resetPeakMemoryStats(index)

    functions: dict[str, Any] = {
        "is_initialized": lambda: True,
        "device_count": lambda: 2,
        "memory_stats_as_nested_dict": statistics,
        "memory_allocated": lambda index: statistics(index)["allocated_bytes"]["all"]["current"],
        "reset_peak_memory_stats": reset,
    }
    vars(module).update(functions)
    vars(cuda.torch)["xpu"] = module
    cuda.allocate(0, 100)
    cuda.allocate(0, -90)
    probe.begin_peaks()
    cuda.allocate(0, 20)
    reset(0)
    cuda.allocate(0, -20)
    assert probe.read()["xpu:0"] == DeviceReading(10, 10, 20, 10, peak=30, reserved_peak=60)
    assert statistics(0)["allocated_bytes"]["all"]["peak"] == 30
    cuda.allocate(0, -10)
    probe.begin_peaks()
    assert probe.read()["xpu:0"].peak == 0
    assert statistics(0)["allocated_bytes"]["all"]["peak"] == 30


def test_a_module_with_few_functions_has_few_figures(cuda: StandInCuda, probe: TorchDevices) -> None:
    cuda.initialised = False
    for name, functions in {
        "mtia": {"memory_allocated": lambda index: 512, "memory_stats": lambda index: {"dram": {"peak": 1}}},
        "hpu": {},
    }.items():
        module = ModuleType(name)
        members: dict[str, Any] = {**functions, "is_initialized": lambda: True, "device_count": lambda: 1}
        vars(module).update(members)
        vars(cuda.torch)[name] = module
    probe.begin_peaks()
    assert probe.read() == {"mtia:0": DeviceReading(512)}
    assert probe.absent == {"hpu": "torch.hpu has no memory counters"}


def test_mps_has_what_metal_counts(cuda: StandInCuda, probe: TorchDevices) -> None:
    cuda.initialised = False
    used = [0]
    functions: dict[str, Any] = {
        "_has_mps": True,
        "_mps_is_available": lambda: True,
        "_mps_currentAllocatedMemory": lambda: used[0],
        "_mps_driverAllocatedMemory": lambda: 4096,
    }
    vars(cuda.torch._C).update(functions)
    assert probe.read() == {}
    used[0] = 512
    assert probe.read() == {"mps:0": DeviceReading(512, reserved=4096)}
    used[0] = 0
    assert probe.read() == {"mps:0": DeviceReading(0, reserved=4096)}


@pytest.mark.torch
def test_a_device_with_a_module_of_its_own(torch: Any, probe: TorchDevices) -> None:
    assert probe.read() == {}
    kept = [torch.empty(1000, device="simgpu:0"), torch.empty(MIB, dtype=torch.uint8, device="simgpu:0")]
    del kept[1]
    probe.begin_peaks()
    reserved = MIB + simgpu.SEGMENT
    expected = DeviceReading(4096, 4000, reserved, 4096, 4096, reserved)
    assert probe.read() == {"simgpu:0": expected}
    assert probe.first_used == {"simgpu:0"}
    kept.append(torch.empty(10, device="simgpu:1"))
    assert probe.read()["simgpu:1"].peak == 512
    assert probe.first_used == {"simgpu:1"}


@pytest.mark.torch
def test_users_see_a_modules_peaks_unchanged_however_they_name_the_device(torch: Any, probe: TorchDevices) -> None:
    device = torch.simgpu
    torch.empty(2 * MIB, dtype=torch.uint8, device="simgpu:1")
    before = dict(vars(device))
    probe.begin_peaks()
    kept = torch.empty(1024, dtype=torch.uint8, device="simgpu:1")
    for named in (1, "simgpu:1", torch.device("simgpu:1")):
        assert device.max_memory_allocated(named) == 2 * MIB
        assert device.max_memory_reserved(device=named) == 2 * MIB + simgpu.SEGMENT
    with device.device(1):
        assert device.max_memory_allocated() == 2 * MIB
        assert device.memory_stats()["allocated_bytes.all.peak"] == 2 * MIB
    assert device.max_memory_allocated(0) == 0
    assert probe.read()["simgpu:1"].peak == 1024
    device.reset_peak_memory_stats("simgpu:1")
    assert device.max_memory_allocated(1) == 1024
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        device.max_memory_allocated(7)
    probe.stop()
    assert dict(vars(device)) == before
    assert kept.numel() == 1024


@pytest.mark.torch
def test_bad_counters_are_absent_and_a_broken_device_raises(torch: Any, probe: TorchDevices) -> None:
    kept = torch.empty(10, device="simgpu:0")
    assert probe.read()["simgpu:0"].allocated == 512
    simgpu.skew_counters(0, 4096)
    assert probe.read() == {}
    assert probe.absent == {"simgpu:0": "its counters are out of range"}
    simgpu.break_device(0)
    for call in (probe.read, probe.begin_peaks):
        with pytest.raises(RuntimeError, match="launch failure"):
            call()
    assert kept.numel() == 10


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com", True),
        ("CUDA error: an illegal memory access was encountered\n", True),
        ("CUDA driver error: unspecified launch failure", True),
        ("HIP error: unspecified launch failure\nFor debugging consider passing AMD_SERIALIZE_KERNEL=3", True),
        ("CUDA error: out of memory", False),
        ("CUDA error: invalid device ordinal", False),
        ("CUDA error: no kernel image is available for execution on the device", False),
        ("the kernel says: CUDA error: device-side assert triggered", False),
        ("", False),
    ],
)
def test_an_error_that_each_later_call_raises_again_is_known_by_its_text(text: str, lost: bool) -> None:
    assert TorchDevices().why_lost(RuntimeError(text)) == (text.partition("\n")[0] if lost else None)


@pytest.mark.torch
def test_the_backends_own_workspaces_are_a_settle_step(torch: Any, probe: TorchDevices) -> None:
    linear = torch.nn.Linear(4, 4, device="simgpu:0")
    linear(torch.ones(1, 4, device="simgpu:0"))
    assert probe.read()["simgpu:0"].allocated == simgpu.WORKSPACE_BYTES + 1024
    for step in device_steps():
        list(step.steps())
    assert probe.read()["simgpu:0"].allocated == 1024
    assert torch.simgpu.memory_reserved(0) > simgpu.WORKSPACE_BYTES  # the cache is the user's
