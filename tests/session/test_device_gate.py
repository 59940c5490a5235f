"""Parts of `--gpu-leak-wait`: what is this process's, and which of the listed processes are of the run."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.nvml.readings import NvmlReading, ProcessMemory
from pytest_gpuleak.engine.detect.counters import CounterWatch
from pytest_gpuleak.engine.detect.processes import Children
from pytest_gpuleak.engine.limits import LEAST_OCCUPIED
from pytest_gpuleak.model.findings import Finding
from pytest_gpuleak.model.outcomes import TestRecord
from pytest_gpuleak.session.features.device_gate.hooks import in_this_process, reserved_growth
from pytest_gpuleak.session.features.device_gate.processes import AgentFigures, ListedProcesses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuleak.model.findings import FindingKind
    from pytest_gpuleak.model.outcomes import Outcome

psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are started as on POSIX")

GIB = 1 << 30


class Figures(CounterWatch):
    """Counters with figures of our own."""

    def __init__(self, **grown: int) -> None:
        super().__init__((), ())
        self._grown = grown

    def record(self, peaks: Any) -> dict[str, dict[str, int]]:
        """What each device has more of."""
        return {
            "host": {"heap_before": 0, "heap_after": GIB},
            **{f"{name}:0": {"allocated_before": 1, "allocated_after": 1 + size} for name, size in self._grown.items()},
        }


def record(*findings: Finding, outcome: Outcome = "passed") -> TestRecord:
    return TestRecord("t.py::test", "clean", None, outcome, "main", 1.0, 0.0, findings=findings)


def finding(kind: FindingKind, size: int, device: str = "cuda:0", *, until_teardown: bool = False) -> Finding:
    return Finding(kind, True, device, 1, size, size, "00", until_teardown=until_teardown)


def test_a_checked_test_has_left_what_its_findings_say() -> None:
    findings = (
        finding("growing", GIB),
        finding("retained", 2 * GIB),
        finding("growing", LEAST_OCCUPIED, "cuda:1"),
        finding("growing", LEAST_OCCUPIED - 1, "cuda:2"),
        finding("retained", GIB, "cuda:3", until_teardown=True),
        finding("cycle", GIB, "cuda:4"),
        finding("process", GIB, "cuda:5"),
    )
    left = in_this_process(record(*findings), Figures(cuda=GIB))
    assert left == {"cuda:0": 3 * GIB, "cuda:1": LEAST_OCCUPIED}


@pytest.mark.parametrize("outcome", ["failed", "error", "skipped", "xfailed"])
def test_a_test_that_was_not_checked_has_left_what_is_allocated_more(outcome: Outcome) -> None:
    left = in_this_process(record(outcome=outcome), Figures(cuda=GIB, xpu=LEAST_OCCUPIED - 1))
    assert left == {"cuda:0": GIB}


def test_what_is_reserved_more_is_unknown_after_the_first_use() -> None:
    before, now = {("cuda:0", "reserved"): GIB}, {("cuda:0", "reserved"): 3 * GIB}
    assert reserved_growth("cuda:0", before, now) == 2 * GIB
    assert reserved_growth("cuda:0", {}, now) is None
    assert reserved_growth("cuda:0", {}, {}) == 0


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate(b"\n")


def others(*pids: int, own: int | None = 0) -> dict[str, NvmlReading]:
    rows = tuple(ProcessMemory(pid, GIB) for pid in pids)
    return {"cuda:0": NvmlReading("GPU-a", "Test GPU", None, None, own, (), rows)}


def test_foreign_processes_are_told_once_for_each_device_that_is_used(child: int) -> None:
    listed = ListedProcesses(Children(), is_worker=False)
    assert listed.tell_foreign(others(child), ["cpu"]) == []
    assert listed.are_foreign_untold(["cpu", "cuda:0"])
    (one,) = listed.tell_foreign(others(child), ["cpu", "cuda:0"])
    assert (one.cause, one.pid, one.bytes) == ("foreign", child, GIB)
    assert one.command.endswith("-S -c input()")
    assert listed.tell_foreign(others(child), ["cuda:0"]) == []
    assert not listed.are_foreign_untold(["cpu", "cuda:0"])


def test_other_workers_of_the_run_are_not_foreign(child: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getppid", os.getpid)
    assert ListedProcesses(Children(), is_worker=True).tell_foreign(others(child, os.getpid()), ["cuda:0"]) == []
    assert ListedProcesses(Children(), is_worker=False).tell_foreign(others(child), ["cuda:0"])


def test_pids_that_cannot_be_told_apart_are_nobodys(child: int) -> None:
    listed = ListedProcesses(Children(), is_worker=False)
    assert listed.tell_foreign(others(child, own=None), ["cuda:0"]) == []
    reading = others(child, own=None)["cuda:0"]
    assert listed.standings("cuda:0", reading, reading, "t.py::test") == {}


def test_a_process_that_was_listed_before_the_test_stays_foreign(child: int) -> None:
    before, gone = others(child, 4_194_200)["cuda:0"], 4_194_201
    now = others(child, 4_194_200, gone)["cuda:0"]
    standings = ListedProcesses(Children(), is_worker=False).standings("cuda:0", now, before, "t.py::test")
    assert standings == {gone: "ending"}


UUID = "GPU-AAAA-01"


def hidden(*children: tuple[int, int]) -> NvmlReading:
    rows = tuple(ProcessMemory(pid, size) for pid, size in children)
    return NvmlReading(UUID, "Test GPU", None, GIB, None, rows)


def test_agents_tell_what_helpers_have_where_the_driver_does_not(child: int) -> None:
    answers: list[dict[int, dict[str, int]]] = [{child: {"aaaa-01": GIB, "other": 5}}, {}, {child: {}}]
    agents: Any = SimpleNamespace(on_devices=lambda: answers.pop(0))
    owned: Any = SimpleNamespace(owned=lambda: {psutil.Process(child): 1})
    figures = AgentFigures(owned, agents)
    known = {"cuda:0": hidden()._replace(own=0)}
    assert figures.add_to(known) is known
    listed = hidden((77, GIB))._replace(others=(ProcessMemory(78, GIB),))  # of another namespace
    assert figures.add_to({"cuda:0": listed}) == {"cuda:0": hidden((child, GIB))}
    assert figures.are_complete
    assert figures.add_to({"cuda:0": listed}) == {"cuda:0": hidden()}
    assert not figures.are_complete  # it has not answered, and runs
    assert figures.add_to({"cuda:0": listed}) == {"cuda:0": hidden()}
    assert figures.are_complete


def test_without_an_agent_for_each_helper_the_total_tells_nothing(child: int) -> None:
    owned: Any = SimpleNamespace(owned=lambda: {psutil.Process(child): 1})
    assert not AgentFigures(owned, None).are_complete
    assert AgentFigures(Children(), None).are_complete


def test_what_agents_tell_of_a_process_is_held_against_who_started_it(child: int) -> None:
    reading = hidden((child, GIB))
    listed = ListedProcesses(Children(), is_worker=False)
    assert listed.standings("cuda:0", reading, hidden(), "t.py::test") == {child: "left"}
    assert listed.describe("cuda:0", child, GIB).cause == "process"
    assert listed.standings("cuda:0", reading, hidden(), "t.py::test") == {child: "apart"}  # told once
