"""The memory of helper processes that fixtures start, from test to test: whose it is, and when it has drifted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuleak.adapters.nvml.driver import LazyNvml
from pytest_gpuleak.adapters.nvml.readings import NvmlReading, ProcessMemory
from pytest_gpuleak.adapters.processes import usage as process_memory
from pytest_gpuleak.adapters.processes.usage import own_bytes
from pytest_gpuleak.engine.detect import helper_memory
from pytest_gpuleak.engine.detect.helper_memory import HelperWatch
from pytest_gpuleak.engine.detect.processes import Children
from pytest_gpuleak.model.finding_codec import decode, encode
from pytest_gpuleak.model.helpers import (
    LEAST_DRIFT,
    LEAST_STEP,
    WARM_UP,
    HelperGrowth,
    HelperMemory,
    has_drifted,
)
from pytest_gpuleak.model.outcomes import FixturePlace
from pytest_gpuleak.model.policy import Policy
from pytest_gpuleak.model.summary import ProcessFacts
from pytest_gpuleak.reports.terminal.helpers import MAX_TOLD, render_drift
from tests.support.calls import count_calls

if TYPE_CHECKING:
    from collections.abc import Iterator

psutil: Any = pytest.importorskip("psutil")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MIB = 1 << 20
PLACE = FixturePlace("server", "session", "", "conftest.py", 4)

SERVER = """
import mmap, sys
kept = []
print(flush=True)
for line in sys.stdin:
    size = int(line) << 20
    kept.append(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))  # no heap, which rounds and keeps
    for page in range(0, size, mmap.PAGESIZE):
        kept[-1][page] = 1
    print(flush=True)
"""


class Helper:
    """A process that keeps as many MiB as it is asked to."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def keep(self, mib: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{mib}\n")
        self.process.stdin.flush()
        self._answer()

    def _answer(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Driver(LazyNvml):
    """A driver that lists what it is told to, and counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__([])
        self.rows: list[ProcessMemory] = []
        self.own: int | None = 0
        self.asked = 0

    def read(self, *, bounded: bool = True) -> dict[str, NvmlReading]:
        self.asked += 1
        return {"cuda:0": NvmlReading("GPU-a", "Test", 1 << 36, 0, self.own, tuple(self.rows))}


class Suite:
    """Tests that use helpers, one after another."""

    def __init__(self) -> None:
        self.children = Children()
        self.driver = Driver()
        self.watch = HelperWatch(self.children, self.driver)
        self.started: list[Helper] = []
        self.children.begin()

    def start(self, fixture: int = 1) -> Helper:
        self.children.setup_begins(fixture, PLACE._replace(name=f"server{fixture}"), Policy())
        helper = Helper()
        self.started.append(helper)
        self.children.setup_ends(fixture, 0.1, failed=False)
        return helper

    def test(self, nodeid: str, *uses: tuple[Helper, int]) -> Any:
        self.children.begin()
        self.watch.begin_test(nodeid)
        for helper, mib in uses:
            helper.keep(mib)
        return self.watch.end_test()

    def helpers(self) -> list[HelperMemory]:
        return self.watch.helpers("main", agent=False)


@pytest.fixture
def suite() -> Iterator[Suite]:
    made = Suite()
    yield made
    for helper in made.started:
        helper.end()


@on_linux
def test_what_each_test_adds_to_whose_helper(suite: Suite) -> None:
    one, other = suite.start(1), suite.start(2)
    suite.test("test_a.py::test_first")
    readings = suite.test("test_a.py::test_keeps[1]", (one, 8))
    suite.test("test_a.py::test_keeps[2]", (one, 8), (other, 2))
    grown, less = suite.helpers()
    # The other has a page more where it was still starting.
    (reading,) = (found for found in readings if found.pid == one.process.pid)
    assert reading.before is not None
    assert reading.device == "host"
    assert 7.5 * MIB < reading.after - reading.before < 9 * MIB
    assert (grown.name, grown.fixture, grown.worker, grown.tests) == ("python -c", "server1", "main", 3)
    (most,) = grown.growth
    assert (most.test, most.runs, most.grew) == ("test_a.py::test_keeps", 2, 2)
    assert 15 * MIB < most.bytes < 18 * MIB
    assert most.least > 7.5 * MIB
    assert 15 * MIB < grown.last - grown.first < 18 * MIB
    assert less.fixture == "server2"
    assert 1.5 * MIB < next(one.bytes for one in less.growth if one.test == "test_a.py::test_keeps") < 3 * MIB


@on_linux
def test_the_last_reading_is_before_the_teardown_of_the_owner(suite: Suite) -> None:
    helper = suite.start(1)
    suite.test("test_a.py::test_first")
    suite.children.begin()
    suite.watch.begin_test("test_a.py::test_last")
    helper.keep(6)
    suite.watch.before_teardown(2)  # another's
    helper.keep(6)
    suite.watch.before_teardown(1)
    helper.end()
    suite.children.teardown_ends(1)
    (reading,) = suite.watch.end_test()
    assert reading.before is not None
    assert 11 * MIB < reading.after - reading.before < 14 * MIB
    suite.watch.before_teardown(1)  # in a re-run, which is no test
    (found,) = suite.helpers()
    assert (found.tests, found.growth[0].test) == (2, "test_a.py::test_last")


@on_linux
def test_what_a_helper_lets_go_of_after_its_answer_it_has_not_kept(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.start()
    sizes = iter([100, 100, 100, 140, 100, 140, 100, 120])
    monkeypatch.setattr(helper_memory, "own_bytes", lambda _, **__: next(sizes) * MIB)
    for name in ("test_first", "test_b", "test_b", "test_c"):
        suite.test(name)
    (found,) = suite.helpers()
    assert found.growth == (HelperGrowth("test_c", 1, 1, 20 * MIB, 20 * MIB),)


@on_linux
def test_a_child_of_a_helper_is_its_fixtures_too(suite: Suite) -> None:
    code = (
        "import subprocess, sys\n"
        "for line in sys.stdin:\n"
        "    child = subprocess.Popen([sys.executable, '-S', '-c', 'print(flush=True); input()'], stdin=subprocess.PIPE)\n"
        "child.communicate(b'\\n')\n"
    )
    suite.children.setup_begins(1, PLACE, Policy())
    master = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    suite.children.setup_ends(1, 0.1, failed=False)
    assert master.stdin is not None
    assert master.stdout is not None
    suite.test("test_first")
    master.stdin.write("start\n")
    master.stdin.flush()
    master.stdout.readline()
    suite.test("test_second")
    found = suite.helpers()
    master.communicate()
    assert [(one.fixture, one.tests) for one in found] == [("server", 2), ("server", 1)]
    assert found[1].pid != master.pid


@on_linux
def test_a_helper_that_dies_or_stops_is_followed_as_far_as_it_goes(suite: Suite) -> None:
    dies, stops = suite.start(1), suite.start(2)
    suite.test("test_first")
    dies.process.kill()  # a zombie, which nobody has waited for yet
    os.waitid(os.P_PID, dies.process.pid, os.WEXITED | os.WNOWAIT)
    stops.process.send_signal(signal.SIGSTOP)
    suite.test("test_second")
    dies.end()
    suite.test("test_third")
    stops.process.send_signal(signal.SIGCONT)
    assert [(one.pid, one.tests) for one in suite.helpers()] == [(dies.process.pid, 1), (stops.process.pid, 3)]


@on_linux
def test_a_pid_that_is_another_process_by_now_is_not_read(suite: Suite) -> None:
    helper = psutil.Process(suite.start().process.pid)
    assert own_bytes(helper, is_certain=False)
    helper._ident = (helper.pid, 1.0)  # started at another time
    helper._create_time = 1.0
    assert own_bytes(helper, is_certain=False) is None


def test_without_proc_the_system_is_asked_through_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(path: str) -> bytes:
        raise FileNotFoundError(path)

    monkeypatch.setattr(process_memory, "read_kernel_file", no_file)
    assert own_bytes(psutil.Process(), is_certain=True)

    class Gone(psutil.Process):  # type: ignore[misc]
        def memory_info(self) -> Any:
            raise psutil.NoSuchProcess(1)

    assert own_bytes(Gone(), is_certain=True) is None


@on_linux
def test_what_the_driver_says_of_helpers_is_theirs_where_pids_are_visible(suite: Suite) -> None:
    helper = suite.start()
    driver = suite.driver
    for size in (1, 2, 3, 64):
        driver.rows = [ProcessMemory(helper.process.pid, size * MIB), ProcessMemory(1, 5 * MIB)]
        suite.test("test_stream")
    asked = driver.asked
    (on_device,) = [one for one in suite.helpers() if one.device == "cuda:0"]
    assert (on_device.tests, on_device.first, on_device.settled, on_device.last) == (4, MIB, 3 * MIB, 64 * MIB)
    assert on_device.growth == (HelperGrowth("test_stream", 3, 3, 63 * MIB, MIB),)
    assert asked == 5  # before the first test, and after each
    driver.own = None
    suite.test("test_hidden")
    suite.test("test_hidden")
    assert driver.asked == asked + 1  # in a container it cannot tell: it is not asked again


def test_without_helpers_a_test_costs_a_handful_of_calls(suite: Suite) -> None:
    def a_test() -> None:
        suite.watch.begin_test("test_a")
        suite.watch.end_test()

    assert count_calls(a_test) <= 20
    assert suite.driver.asked == 0


@on_linux
def test_two_hundred_helpers_cost_one_list_of_processes_and_one_file_each(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []

    def read_one(process: Any, **_: object) -> int:
        read.append(process)
        return MIB

    monkeypatch.setattr(helper_memory, "own_bytes", read_one)
    processes = [psutil.Process() for _ in range(200)]
    for number, process in enumerate(processes):
        process._pid, process._hash = 10**7 + number, None
        process._ident = (process._pid, 1.0)
    monkeypatch.setattr(Children, "owned", lambda _, anew=True: dict.fromkeys(processes, 1))
    for _ in range(3):
        suite.test("test_a")
    assert len(read) == 3 * 2 * 200
    assert {(one.tests, one.settled) for one in suite.helpers()} == {(3, MIB)}


def a_helper(
    *, tests: int = 40, first: int = 310, settled: int | None = 312, last: int = 430, **others: Any
) -> HelperMemory:
    growth = (HelperGrowth("tests/test_api.py::test_stream", 3, 3, 120 * MIB, 40 * MIB),)
    sizes = {"first": first * MIB, "settled": None if settled is None else settled * MIB, "last": last * MIB}
    fields = {
        "name": "EngineCore",
        "command": "x",
        "fixture": "server",
        "worker": "main",
        "device": "host",
        "growth": growth,
    }
    return HelperMemory(**{"pid": 4711, "tests": tests, **sizes, **fields, **others})


def lines_of(*helpers: HelperMemory) -> list[str]:
    return render_drift({"helpers": encode(helpers)})


def test_the_line() -> None:
    start = "gpu-leak: EngineCore (pid 4711, fixture 'server'): 310 -> 430 MiB"
    most = "most of it in test_stream (+40.0 MiB, 3 times)"
    advice = "; --gpu-leak-children=agent names what it is"
    assert lines_of(a_helper()) == [f"{start} over 40 tests, {most}{advice}"]
    assert lines_of(a_helper(agent=True)) == [f"{start} over 40 tests, {most}"]
    assert lines_of(a_helper(device="cuda:0")) == [f"{start} of cuda:0 over 40 tests, {most}{advice}"]
    assert lines_of(a_helper(growth=()))[0].endswith("over 40 tests, none of it during a test" + advice)
    assert lines_of(a_helper(worker="gw1", name="a\n\x1b[31mb"))[0].startswith("gpu-leak: a")
    assert "fixture 'server' of gw1" in lines_of(a_helper(worker="gw1"))[0]
    once = HelperGrowth("test_a.py::TestX::test_y", 1, 1, 20 * MIB, 20 * MIB)
    assert "the most in TestX::test_y (+20.0 MiB, once)" in lines_of(a_helper(growth=(once,)))[0]


def test_many_helpers_are_counted() -> None:
    lines = lines_of(*(a_helper(pid=number, last=400 + number) for number in range(200)))
    assert len(lines) == MAX_TOLD + 1
    assert "(pid 199, " in lines[0]
    assert lines[-1] == "gpu-leak: and 190 more helper processes have grown; the JSON report has them"


@pytest.mark.parametrize(
    ("drifts", "helper"),
    [
        (True, {"last": 323}),
        (False, {"last": 322}),  # 10 MiB more than after its first three tests
        (False, {"settled": 420}),  # all of it in its first three
        (True, {"settled": 430, "tests": 6}),  # too few tests to tell: each run of one has added
        (True, {"settled": None, "tests": 2}),
        (False, {"settled": 430, "tests": 6, "growth": (HelperGrowth("t", 3, 2, 80 * MIB, 0),)}),
        (False, {"settled": 430, "tests": 6, "growth": (HelperGrowth("t", 1, 1, 80 * MIB, 80 * MIB),)}),
        (False, {"settled": 430, "tests": 6, "growth": (HelperGrowth("t", 3, 3, 3 * MIB, MIB),)}),
        (False, {"first": 430, "settled": 430, "tests": 6}),  # it has let go of it again
    ],
)
def test_when_a_helper_has_drifted(drifts: bool, helper: dict[str, Any]) -> None:
    assert has_drifted(a_helper(**helper)) is drifts
    assert bool(lines_of(a_helper(**helper))) is drifts


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(st.integers(-LEAST_DRIFT // 2, LEAST_DRIFT // 2), min_size=WARM_UP + 4, max_size=60), st.data())
def test_one_that_stays_near_what_it_had_after_its_warm_up_has_not_drifted(
    offsets: list[int], data: st.DataObject
) -> None:
    warm_up = data.draw(st.lists(st.integers(0, 1 << 40), min_size=WARM_UP, max_size=WARM_UP))
    sizes = [*warm_up, *(warm_up[-1] + offset for offset in offsets)]
    growth = (HelperGrowth("t", len(offsets), len(offsets), 1 << 40, LEAST_STEP),)
    helper = a_helper(growth=growth, tests=len(sizes))
    helper = helper._replace(first=sizes[0], settled=sizes[WARM_UP - 1], last=sizes[-1])
    assert not has_drifted(helper)
    assert has_drifted(helper._replace(last=sizes[WARM_UP - 1] + LEAST_DRIFT + 1))
    assert decode(HelperMemory, encode(helper)) == helper


def test_several_processes_facts_are_added_up() -> None:
    facts = ProcessFacts()
    for worker in ("gw0", "gw1"):
        of_one = ProcessFacts()
        of_one.helpers.append(a_helper(worker=worker))
        facts.add(of_one.encode(whole=True))
    assert facts.helpers == [a_helper(worker="gw0"), a_helper(worker="gw1")]
