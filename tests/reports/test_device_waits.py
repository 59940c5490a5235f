"""The lines on devices that were waited for."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from pytest_gpuleak.model.devices import DeviceWait, Occupied
from pytest_gpuleak.model.findings import Finding, Holder
from pytest_gpuleak.model.outcomes import TestRecord, decode_test, encode_test
from pytest_gpuleak.reports.terminal.devices import MAX_TOLD, describe_waits

if TYPE_CHECKING:
    from pytest_gpuleak.model.outcomes import Outcome

GIB = 1 << 30
FOREIGN = Occupied("cuda:0", "foreign", GIB, 77, "python train.py")


def record(
    *occupied: Occupied, waited_s: float = 0.0, outcome: Outcome = "passed", nodeid: str = "t.py::test"
) -> TestRecord:
    wait = DeviceWait(waited_s, occupied)
    return TestRecord(nodeid, "clean", None, outcome, "main", 1.0, 0.0, device_wait=wait)


def sentences(*tests: TestRecord) -> list[str]:
    return describe_waits(tests)


def test_nothing_is_said_where_nothing_was_waited_for() -> None:
    assert sentences(record()._replace(device_wait=None), record()) == []


def test_each_cause_has_its_words() -> None:
    holder = Holder("module", "app.HISTORY", "app.HISTORY[0]")
    held = record(Occupied("cuda:0", "this process", GIB), waited_s=1.0)._replace(
        findings=(Finding("growing", True, "cuda:0", 1, GIB, GIB, "00", holder=holder),)
    )
    assert sentences(held)[0] == (
        "gpu-leak: after t.py::test, 1.0 GiB of cuda:0 are held in this process after 1.0 s, by app.HISTORY"
    )
    failed = record(Occupied("cuda:0", "this process", GIB), outcome="failed")
    assert sentences(failed) == [
        (
            "gpu-leak: after t.py::test, 1.0 GiB of cuda:0 are held in this process, by what is not known: the test was "
            "not checked (failed), and its traceback may hold its locals"
        )
    ]
    alive = Occupied("cuda:0", "process", GIB, 7, "python -m server", "fixture 'server' (module scope, t.py)")
    driver, ended = (
        Occupied("cuda:0", "driver", GIB),
        Occupied("cuda:0", "driver", GIB, 7, why="the driver still lists it"),
    )
    unknown = Occupied("cuda:0", "unknown", GIB, why="not visible: a container")
    assert sentences(record(alive, driver, ended, unknown, waited_s=2.0)) == [
        (
            "gpu-leak: after t.py::test, 1.0 GiB of cuda:0 are held after 2.0 s by pid 7 (python -m server), which is alive, "
            "started by fixture 'server' (module scope, t.py)"
        ),
        (
            "gpu-leak: after t.py::test, 1.0 GiB of cuda:0 belong to no process any more, and the driver has not given them "
            "back after 2.0 s"
        ),
        (
            "gpu-leak: after t.py::test, 1.0 GiB of cuda:0 belong to no process any more, and the driver has not given them "
            "back after 2.0 s (pid 7 has ended and the driver still lists it)"
        ),
        (
            "gpu-leak: after t.py::test, 1.0 GiB of cuda:0 are in use after 2.0 s that were not before it; whose they are is "
            "not visible: a container"
        ),
        "gpu-leak: waited 2.0 s for devices after 1 test",
    ]


def test_workers_tell_the_same_foreign_process_once() -> None:
    assert sentences(record(FOREIGN), record(FOREIGN, nodeid="t.py::other")) == [
        "gpu-leak: before cuda:0 was used, 1.0 GiB of it were taken by pid 77 (python train.py), which is not of this run"
    ]


def test_many_are_counted() -> None:
    tests = [record(Occupied("cuda:0", "driver", GIB), nodeid=f"t.py::test_{number}") for number in range(MAX_TOLD + 3)]
    lines = sentences(*tests)
    assert len(lines) == MAX_TOLD + 1
    assert lines[-1] == "gpu-leak: and 3 more on devices; the JSON report has them"


def test_hostile_values_stay_on_their_line() -> None:
    hostile = "\x1b[31m\n::error::"
    lines = sentences(record(Occupied(hostile, "process", -1, 7, hostile, hostile, hostile), waited_s=math.inf))
    assert len(lines) == 1
    assert lines[0].isprintable()


def test_a_record_survives_the_way_through_json() -> None:
    test = record(FOREIGN, Occupied("cuda:1", "driver", 1, why="because"), waited_s=0.5)
    assert decode_test(json.loads(json.dumps(encode_test(test)))) == test
