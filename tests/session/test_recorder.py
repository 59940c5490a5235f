"""Which attempt of a test counts, from the reports alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuleak.model.outcomes import TestRecord
from pytest_gpuleak.session.records.recorder import Recorder
from pytest_gpuleak.session.records.run_records import RunProgress, RunRecords
from pytest_gpuleak.session.report_record import RECORD_ATTRIBUTE

NODEID = "t.py::test_one"


@pytest.fixture
def records() -> RunRecords:
    return RunRecords()


@pytest.fixture
def recorder(records: RunRecords) -> Recorder:
    settings: Any = SimpleNamespace(warn=False)
    check: Any = SimpleNamespace(fixture_records=[], attempts=SimpleNamespace(worker="main"))
    return Recorder(settings, records, check, RunProgress())


def report(worker: str, when: str, *, outcome: str = "passed", ends: bool = False) -> Any:
    node = SimpleNamespace(gateway=SimpleNamespace(id=worker))
    made = SimpleNamespace(nodeid=NODEID, when=when, outcome=outcome, node=node)
    for one in ("passed", "failed", "skipped"):
        setattr(made, one, outcome == one)
    if ends:
        setattr(made, RECORD_ATTRIBUTE, TestRecord(NODEID, "clean", None, "passed", worker, 0.1, 0.0, {}))
    return made


def test_a_test_that_two_workers_run_at_a_time_counts_for_each(recorder: Recorder, records: RunRecords) -> None:
    """With `--dist=each`, the second to end was told to be run again: which one, and how many, was a matter of time."""
    for one in (
        report("gw0", "call"),
        report("gw1", "call"),
        report("gw0", "teardown", ends=True),
        report("gw1", "teardown", ends=True),
    ):
        recorder.pytest_runtest_logreport(one)
    assert [(record.worker, record.rerun) for record in records.tests] == [("gw0", False), ("gw1", False)]


def test_an_attempt_that_is_run_again_does_not_count(recorder: Recorder, records: RunRecords) -> None:
    for outcome in ("rerun", "passed"):
        recorder.pytest_runtest_logreport(report("gw0", "call", outcome=outcome))
        recorder.pytest_runtest_logreport(report("gw0", "teardown", ends=True))
    assert [record.rerun for record in records.tests] == [True, False]
