"""`--gpu-leak-wait`: waiting for device memory that is on its way out, and who has what stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.nvml import readings as nvml
from pytest_gpuleak.adapters.nvml.process_identity import Identity
from pytest_gpuleak.adapters.processes import facts
from pytest_gpuleak.session.features.children import agents
from pytest_gpuleak.session.features.device_gate import hooks
from tests.support.nvml import GIB, TIMELINE, A, a_device
from tests.support.schema import check_schema

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from tests.conftest import Run, Runner
    from tests.support.nvml import DriverState

pytest.importorskip("psutil")
pytest.importorskip("pynvml")  # before pytester takes its snapshot of `sys.modules`: a run inside a test uses this one
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in for the driver is a library of Linux")

HEAD = """
    import os, subprocess, sys
    import pytest
    from tests.support.nvml import GIB, TIMELINE, A, a_device

    KEPT = []

    def start(seconds=10_000):  # until it is killed
        TIMELINE.processes.append(subprocess.Popen([sys.executable, "-S", "-c", f"import time; time.sleep({seconds})"]))
        return TIMELINE.processes[-1]

    def has(process, size):
        return f"process {A} compute {getattr(process, 'pid', process)} {size}"

    def ended():
        child = start(0)
        child.wait()
        return child
"""

Gate = Callable[..., "Run"]


@pytest.fixture
def gate(run: Runner, nvml_state: DriverState, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Runs a suite with `--gpu-leak-wait=5`, on the clock of `TIMELINE`."""
    TIMELINE.clear()
    monkeypatch.setattr(facts, "MOST_WAITS", 1)  # what is left here does not end
    monkeypatch.setattr(hooks, "sleep", TIMELINE.sleep)
    monkeypatch.setattr(hooks, "perf_counter", TIMELINE.clock)

    def start(suite: str, *arguments: str, wait: str = "--gpu-leak-wait=5") -> Run:
        return run(textwrap.dedent(HEAD) + textwrap.dedent(suite), *filter(None, [wait]), *arguments)

    yield start
    TIMELINE.clear()


def waited(found: Run, name: str = "test_it") -> tuple[float, list[dict[str, Any]]]:
    wait = found.tests[name]["device_wait"]
    return wait["waited_s"], wait["occupied"]


def told(found: Run) -> str:
    """The run's lines, joined where they were wrapped."""
    return " ".join(line.strip() for line in found.result.outlines)


# Where it waits, and for how long: between two of these tests `anew` frees the device.
SCENARIOS = """
    HELD = []
    judged_once = pytest.mark.gpu_leak(confirm=0)

    def anew():
        TIMELINE.clear()
        KEPT.clear()
        HELD.clear()
        TIMELINE.say(a_device())
        ended()

    def zombie():
        KEPT.append(start(0))
        os.waitid(os.P_PID, KEPT[-1].pid, os.WEXITED | os.WNOWAIT)
        TIMELINE.say(a_device(used=31 * GIB), has(KEPT[-1], 30 * GIB))
        return KEPT[-1]

    def child_with_30_gib():
        KEPT.append(start())
        TIMELINE.say(a_device(used=31 * GIB), has(KEPT[-1], 30 * GIB))
        return KEPT[-1]

    def test_back_at_once():
        ended()
        TIMELINE.say(a_device())

    def test_falls():
        ended()
        TIMELINE.say(a_device(used=60 * GIB))
        for used in (40, 20, 1):
            TIMELINE.then(a_device(used=used * GIB))

    def test_late():
        ended()
        TIMELINE.say(a_device(used=60 * GIB))
        TIMELINE.then(a_device(used=60 * GIB), times=9)
        TIMELINE.then(a_device())

    def test_never():
        ended()
        TIMELINE.say(a_device(used=31 * GIB))

    def test_after_never():  # it was there before
        ended()

    def test_frees_1(): anew()

    def test_here():
        HELD.append(Buffer(3 * GIB, "cuda:0"))
        TIMELINE.say(a_device(used=4 * GIB), has(os.getpid(), 3 * GIB))

    def test_frees_2(): anew()

    @judged_once
    def test_child():
        child_with_30_gib()

    def test_after_child():  # told once
        pass

    def test_frees_3(): anew()

    @judged_once
    def test_child_that_falls():
        child = child_with_30_gib()
        for size in (25, 20, 15, 10):
            TIMELINE.then(a_device(used=(size + 1) * GIB), has(child, size * GIB))

    def test_frees_4(): anew()

    def test_zombie():
        zombie()

    def test_frees_5(): anew()

    def test_zombie_that_goes():
        child = zombie()
        TIMELINE.then(a_device(used=31 * GIB), has(child, 30 * GIB), times=7)
        TIMELINE.then(a_device())

    def test_listed():
        TIMELINE.say(a_device(used=31 * GIB), has(ended(), 30 * GIB))

    def test_frees_6(): anew()

    def test_listed_for_a_while():
        child = ended()
        TIMELINE.say(a_device(used=31 * GIB), has(child, 30 * GIB))
        TIMELINE.then(a_device(used=31 * GIB), has(child, 30 * GIB), times=7)
        TIMELINE.then(a_device(used=31 * GIB), times=2)
        TIMELINE.then(a_device())

    @judged_once
    def test_orphan():  # known by its environment
        sleeps = "sys.executable, '-S', '-c', 'import time; time.sleep(10000)'"
        code = f"import subprocess, sys; print(subprocess.Popen([{sleeps}], stdout=-3, stderr=-3).pid)"
        pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True).stdout)
        TIMELINE.say(a_device(used=31 * GIB), has(pid, 30 * GIB))

    def test_frees_7(): anew()

    @pytest.fixture(scope="class")
    def server():
        child = child_with_30_gib()
        yield
        child.kill()
        TIMELINE.then(a_device(used=31 * GIB), has(child, 30 * GIB))
        TIMELINE.then(a_device())

    class TestServer:
        def test_up(self, server): pass

        def test_down(self, server): pass

    @pytest.fixture(scope="class")
    def leaves_it():
        child_with_30_gib()

    class TestLeft:
        def test_left(self, leaves_it): pass

    def test_frees_8(): anew()

    @pytest.fixture
    def until_it_is_free():
        yield
        TIMELINE.say(a_device())

    def test_fixture_waits(until_it_is_free):
        ended()
        TIMELINE.say(a_device(used=31 * GIB))

    def test_fails():
        ended()
        TIMELINE.say(a_device(used=31 * GIB))
        TIMELINE.then(a_device())
        assert False
"""
WAITED: dict[str, tuple[float, list[tuple[str, int]]]] = {
    "test_falls": (0.75, []),
    "test_late": (2.5, []),
    "test_never": (5.0, [("driver", 30)]),
    "test_here": (1.0, [("this process", 3)]),
    "test_child": (1.0, [("process", 30)]),
    "test_child_that_falls": (2.0, [("process", 10)]),
    "test_zombie": (5.0, [("driver", 30)]),
    "test_zombie_that_goes": (2.0, []),
    "test_listed": (5.0, [("driver", 30)]),
    "test_listed_for_a_while": (2.5, []),
    "test_orphan": (1.0, [("process", 30)]),
    "TestServer::test_down": (0.5, []),
    "TestLeft::test_left": (1.0, [("process", 30)]),
    "test_fails": (0.25, []),
}


def test_where_it_waits_for_how_long_and_who_has_what_stays(gate: Gate) -> None:
    found = gate(SCENARIOS)
    waits = {name: test["device_wait"] for name, test in found.tests.items() if test["device_wait"] is not None}
    for occupied in waits["test_orphan"]["occupied"]:
        os.kill(occupied["pid"], signal.SIGKILL)
    assert {
        name: (wait["waited_s"], [(one["cause"], one["bytes"] // GIB) for one in wait["occupied"]])
        for name, wait in waits.items()
    } == WAITED
    check_schema(found.report)
    leaked = [name for name, verdict in found.verdicts.items() if verdict == "leaked"]
    assert leaked == ["test_here", "test_child", "test_child_that_falls"]
    one = {name: wait["occupied"][0] for name, wait in waits.items() if wait["occupied"]}
    assert one["test_never"]["pid"] is None
    assert one["test_child"]["command"].endswith("-S -c import time; time.sleep(10000)")
    assert {name: occupied["started_by"] for name, occupied in one.items() if occupied["cause"] == "process"} == {
        "test_child": "test_it.py::test_child",
        "test_child_that_falls": "test_it.py::test_child_that_falls",
        "test_orphan": "test_it.py::test_orphan",
        "TestLeft::test_left": "fixture 'leaves_it' (class scope, test_it.py)",
    }
    text = told(found)
    for line in (
        "after test_it.py::test_never, 30.0 GiB of cuda:0 belong to no process any more, and the driver has not",
        "given them back after 5.0 s",
        "after test_it.py::test_here, 3.0 GiB of cuda:0 are held in this process after 1.0 s, by test_it.HELD",
        f"30.0 GiB of cuda:0 are held after 1.0 s by pid {one['test_child']['pid']} (",
        "time.sleep(10000)), which is alive, started by test_it.py::test_child",
        f"(pid {one['test_zombie']['pid']} has ended and its parent has not waited for it)",
        f"(pid {one['test_listed']['pid']} has ended and the driver still lists it)",
        "gpu-leak: waited 29.5 s for devices after 14 tests",
    ):
        assert line in text
    assert "no effect" not in text


def test_memory_that_is_back_at_once_costs_no_wait(gate: Gate) -> None:
    assert "waited" not in told(gate("def test_it():\n    ended()\n    TIMELINE.say(a_device())\n"))
    assert TIMELINE.slept == []


def test_foreign_processes_are_named_once_and_not_waited_for(gate: Gate, nvml_state: DriverState) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as foreign:
        nvml_state.say(a_device(used=21 * GIB), f"process {A} compute 1 {20 * GIB}")
        found = gate("""
            def test_host():
                ended()

            def test_it():
                KEPT.append(start())
                TIMELINE.say(a_device(used=22 * GIB), has(1, 20 * GIB), has(KEPT[0], GIB))

            def test_more():
                TIMELINE.say(a_device(used=52 * GIB), has(1, 50 * GIB), has(KEPT[0], GIB))
        """)
        foreign.communicate(b"\n")
    assert found.tests["test_host"]["device_wait"] is None
    _, (one, child) = waited(found)
    assert (one["cause"], one["bytes"], one["pid"], child["cause"]) == ("foreign", 20 * GIB, 1, "process")
    assert "before cuda:0 was used, 20.0 GiB of it were taken by pid 1 (" in told(found)
    assert found.tests["test_more"]["device_wait"] is None


def test_without_children_the_driver_is_not_asked(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_gpuleak.adapters.processes import watch

    monkeypatch.setattr(watch, "has_children", lambda: False)
    found = gate("""
        def test_it():
            TIMELINE.say(a_device(used=31 * GIB))  # another process's, which ends
    """)
    assert found.tests["test_it"]["device_wait"] is None


# What cannot be told.


def in_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = Identity((4_000_000,), False, "not visible: this process has a pid namespace of its own")
    monkeypatch.setattr(nvml, "own_identity", lambda: hidden)


def test_in_a_container_that_hides_pids_the_total_is_waited_for_while_it_falls(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_container(monkeypatch)
    found = gate("""
        def test_it():
            ended()
            TIMELINE.say(a_device(used=31 * GIB), has(77, 30 * GIB))
            TIMELINE.then(a_device(used=21 * GIB), has(77, 20 * GIB))
            TIMELINE.then(a_device(used=11 * GIB), has(77, 10 * GIB))
    """)
    seconds, (one,) = waited(found)
    assert (seconds, one["cause"], one["bytes"]) == (1.5, "unknown", 10 * GIB)
    text = told(found)
    assert (
        "10.0 GiB of cuda:0 are in use after 1.5 s that were not before it; whose they are is not visible: this process "
        "has a pid namespace of its own"
    ) in text
    assert "--gpu-leak-wait: on cuda:0 it cannot be told which process has what" in text


AGENT = """
    import multiprocessing

    def serve(connection, sizes):
        from pytest_gpuleak.adapters import frameworks
        from pytest_gpuleak.adapters.nvml import readings
        from pytest_gpuleak.child import agent
        from tests.support.fake_devices import PROBE

        # The agent reads its devices once it has a message; what is used before is there by then.
        frameworks.Frameworks.devices = property(lambda self: [PROBE])
        agent.framework_uuids = lambda: [A.partition("-")[2]]
        for size in sizes:
            if size:
                PROBE.take(size * 1024, "cuda:0")
            connection.send("done")
            connection.recv()

    def helper(*sizes):
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, sizes), name="EngineCore", daemon=True)
        process.start()
        assert ours.recv() == "done"
        TIMELINE.processes.append(process)
        process.wait = process.join
        return process, ours

    def go_on(connection):
        connection.send("next")
        assert connection.recv() == "done"
"""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents are waited for, however slow the machine is."""
    monkeypatch.setattr(agents, "ANSWER_S", 300)
    monkeypatch.setattr(agents, "START_S", 300)


@pytest.mark.usefixtures("patient")
def test_in_a_container_agents_tell_what_helpers_have(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_container(monkeypatch)
    found = gate(textwrap.dedent(AGENT) + textwrap.dedent("""
        @pytest.fixture(scope="module")
        def engine():
            KEPT.append(helper(2, 3))
            TIMELINE.say(a_device(used=4 * GIB), has(77, 2 * GIB))
            yield KEPT[0][1]
            KEPT[0][0].kill()
            KEPT[0][0].join()
            TIMELINE.say(a_device(used=16 * GIB), has(77, 5 * GIB), has(78, 10 * GIB))
            TIMELINE.then(a_device(used=16 * GIB), has(77, 5 * GIB), has(78, 10 * GIB), times=7)
            TIMELINE.then(a_device(used=11 * GIB), has(78, 10 * GIB))

        def test_first(engine):
            pass

        def test_grows(engine):  # what its fixture's helper takes is not the test's
            go_on(engine)
            ended()
            TIMELINE.say(a_device(used=7 * GIB), has(77, 5 * GIB))

        def test_takes(engine):
            ended()
            TIMELINE.say(a_device(used=17 * GIB), has(77, 5 * GIB), has(78, 10 * GIB))

        def test_last(engine):
            pass
    """), "--gpu-leak-children=agent", "--gpu-leak-confirm=0")  # fmt: skip
    assert found.tests["test_first"]["device_wait"] is None
    assert found.tests["test_grows"]["device_wait"] is None
    seconds, (one,) = waited(found, "test_takes")
    assert (seconds, one["cause"], one["bytes"]) == (1.0, "unknown", 10 * GIB)
    assert waited(found, "test_last") == (2.0, [])  # of a process that has ended
    assert "is waited for while it falls, but for what helper processes tell of themselves" in told(found)


@pytest.mark.usefixtures("patient")
def test_in_a_container_an_agent_names_the_process_that_a_test_has_left(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_container(monkeypatch)
    found = gate(textwrap.dedent(AGENT) + textwrap.dedent("""
        def test_it():
            KEPT.append(helper(30))
            TIMELINE.say(a_device(used=31 * GIB), has(77, 30 * GIB))
    """), "--gpu-leak-children=agent", "--gpu-leak-confirm=0")  # fmt: skip
    seconds, (one,) = waited(found)
    assert (seconds, one["cause"], one["bytes"], one["started_by"]) == (1.0, "process", 30 * GIB, "test_it.py::test_it")
    assert f"30.0 GiB of cuda:0 are held after 1.0 s by pid {one['pid']} (" in told(found)


def test_without_rights_to_list_processes_the_total_is_waited_for(gate: Gate, nvml_state: DriverState) -> None:
    refusal = "error nvmlDeviceGetComputeRunningProcesses 4"
    nvml_state.say(refusal, a_device())
    found = gate(f"""
        def test_it():
            ended()
            TIMELINE.say("{refusal}", a_device(used=31 * GIB))
            TIMELINE.then("{refusal}", a_device())
    """)
    assert waited(found) == (0.25, [])


def test_a_part_of_a_divided_device_is_watched(gate: Gate, nvml_state: DriverState) -> None:
    part = "part " + A + " 0 MIG-cccccccc-0000-0000-0000-000000000003 {} {}"
    nvml_state.say(a_device(mig=1), part.format(10 * GIB, GIB))
    found = gate(f"""
        def test_it():
            ended()
            TIMELINE.say(a_device(mig=1), "{part.format(10 * GIB, 9 * GIB)}")
            TIMELINE.then(a_device(mig=1), "{part.format(10 * GIB, GIB)}")
    """)
    assert waited(found) == (0.25, [])


def test_a_device_that_is_lost_ends_the_wait(gate: Gate) -> None:
    found = gate("""
        def test_it():
            ended()
            TIMELINE.say(a_device(used=31 * GIB))
            TIMELINE.then(a_device(used=31 * GIB))
            TIMELINE.then("error nvmlDeviceGetMemoryInfo 15", a_device(used=31 * GIB))

        def test_next():
            ended()
    """)
    assert waited(found) == (0.5, [])
    assert "gpu-leak: nvml: NVML failed and is no longer read: the GPU is lost" in told(found)
    assert found.tests["test_next"]["device_wait"] is None


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("error nvmlInit 9", "the NVIDIA driver is not loaded"),
        ("error nvmlInit 4", "no permission to ask the NVIDIA driver"),
        ("", "the NVIDIA driver shows no device"),
    ],
)
def test_without_a_device_it_does_nothing_and_says_so(
    gate: Gate, nvml_state: DriverState, state: str, why: str
) -> None:
    nvml_state.say(state)
    found = gate("def test_it():\n    ended()\n")
    assert f"gpu-leak: --gpu-leak-wait has no effect: {why}" in found.result.outlines
    assert found.tests["test_it"]["device_wait"] is None


# The run.


def test_ctrl_c_ends_the_wait_at_once_and_the_test_keeps_its_record(gate: Gate, pytester: pytest.Pytester) -> None:
    with pytest.raises(KeyboardInterrupt):  # pytester raises it again, once the run has ended
        gate("""
            def test_it():
                ended()
                TIMELINE.say(a_device(used=31 * GIB))
                TIMELINE.then(a_device(used=21 * GIB))
                TIMELINE.then_raise(KeyboardInterrupt())

            def test_not_run():
                pass
        """)
    assert TIMELINE.slept == [0.25]
    report = json.loads((pytester.path / "report.json").read_text())
    (test,) = report["tests"]
    assert (test["verdict"], test["outcome"]) == ("clean", "passed")
    assert (test["device_wait"]["waited_s"], test["device_wait"]["occupied"][0]["bytes"]) == (0.25, 20 * GIB)


def test_each_worker_of_xdist_waits_for_itself(
    run: Runner, pytester: pytest.Pytester, nvml_library: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xdist")
    monkeypatch.setenv("NVML_STANDIN", str(pytester.path / "state"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library.parent))
    (pytester.path / "state").write_text(a_device())
    pids = """
from pytest_gpuleak.adapters.nvml import readings
from pytest_gpuleak.adapters.nvml.process_identity import Identity

readings.own_identity = lambda: Identity((readings.os.getpid(),), True)
"""
    conftest = pytester.path / "conftest.py"
    conftest.write_text(conftest.read_text() + pids)
    suite = """
        def test_it():
            ended()
            TIMELINE.say(a_device(used=31 * GIB))
    """
    found = run(textwrap.dedent(HEAD) + textwrap.dedent(suite), "--gpu-leak-wait=0.1", "-p", "xdist", "-n1", apart=True)
    assert found.tests["test_it"]["worker"] == "gw0"
    seconds, (one,) = waited(found)
    assert seconds >= 0.1
    assert one["cause"] == "driver"
    assert "after test_it.py::test_it, 30.0 GiB of cuda:0 belong to no process any more" in told(found)
    assert "no effect" not in told(found)


@pytest.mark.parametrize("value", ["off", "0", "0.0"])
def test_it_can_be_off(gate: Gate, value: str) -> None:
    found = gate(
        "def test_it():\n    ended()\n    TIMELINE.say(a_device(used=31 * GIB))\n", wait=f"--gpu-leak-wait={value}"
    )
    assert found.tests["test_it"]["device_wait"] is None
