"""Which tests are missing, and which have brought no record, from the hooks' calls alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuleak.model.outcomes import TestRecord
from pytest_gpuleak.session.records.run_records import DESELECTED_KEY, RunProgress

SESSION: Any = SimpleNamespace(shouldfail=False, shouldstop=False)
IDS = ["t.py::test_one", "t.py::test_two"]


def distributed(mode: str) -> RunProgress:
    found = RunProgress()
    config: Any = SimpleNamespace(getoption=lambda name, default: mode)
    found.pytest_xdist_setupnodes(config, [object(), object()])
    for _ in range(2):
        found.pytest_xdist_node_collection_finished(IDS)
    return found


def record(nodeid: str, worker: str) -> TestRecord:
    return TestRecord(nodeid, "clean", None, "passed", worker, 0.1, 0.0, {})


@pytest.mark.parametrize("mode", ["load", "loadscope", "loadfile", "loadgroup", "worksteal"])
def test_one_worker_is_enough_for_a_test(mode: str) -> None:
    found = distributed(mode)
    records = [record(IDS[0], "gw0")]
    assert found.why_incomplete(SESSION, records) == "1 of 2 tests did not run to the end"
    records.append(record(IDS[1], "gw1"))
    assert found.why_incomplete(SESSION, records) is None


def test_with_each_it_takes_all_workers() -> None:
    found = distributed("each")
    records = [record(nodeid, "gw0") for nodeid in (*IDS, IDS[0])]  # one of them run twice
    assert found.why_incomplete(SESSION, records) == "2 of 4 tests did not run to the end"
    records += [record(nodeid, "gw2") for nodeid in IDS]  # it took the place of one that died
    assert found.why_incomplete(SESSION, records) is None


def test_a_test_that_another_worker_runs_still_is_running() -> None:
    found = distributed("each")
    for _ in range(2):
        found.note_started(IDS[0])
    found.note_ended(IDS[0])
    assert found.running == (IDS[0],)
    found.note_ended(IDS[0])
    assert not found.running


def test_the_gravest_report_tells_the_outcome_and_is_forgotten_with_the_record() -> None:
    found = RunProgress()
    for outcome in ("failed", "skipped"):
        report: Any = SimpleNamespace(
            nodeid=IDS[0], outcome=outcome, skipped=outcome == "skipped", passed=False, when="call"
        )
        found.note_report(report)
    assert found.outcome_of_running(IDS[0]) == "failed"
    found.note_ended(IDS[0])
    assert found.outcome_of_running(IDS[0]) == "passed"


def test_deselected_in_workers_is_counted_once() -> None:
    found = distributed("load")
    for count in (3, 3):
        node = SimpleNamespace(workeroutput={DESELECTED_KEY: count}, gateway=SimpleNamespace(id="gw0"))
        found.pytest_testnodedown(node, None)
    assert found.deselected == 3
