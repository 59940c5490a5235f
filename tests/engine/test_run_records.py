"""The records of a run, whose findings may be explained after their tests were reported."""

from __future__ import annotations

import dataclasses

from pytest_gpuleak.model.findings import WAITING, Finding, HelperProcess, Holder, Judged
from pytest_gpuleak.model.outcomes import TestRecord, Verdict
from pytest_gpuleak.session.records.run_records import RunRecords


def waiting(nodeid: str, worker: str = "main") -> TestRecord:
    finding = Finding("growing", True, "cpu", 1, 4, 4, "", holder=WAITING)
    return TestRecord(nodeid, "leaked", None, "passed", worker, 1.0, 0.0, findings=(finding,), suspect_s={"check": 1.0})


def test_explained_findings_replace_those_that_waited_attempt_by_attempt() -> None:
    kept = RunRecords()
    for record in (waiting("a"), waiting("a", "gw1"), waiting("b"), waiting("a")):
        kept.tests.append(record)
    found = [Finding("growing", True, "cpu", number, 4, 4, "") for number in range(3)]
    explained: list[tuple[str, Verdict, tuple[Finding, ...], float]]
    explained = [("a", "leaked", (found[0],), 0.5), ("b", "noted", (found[1],), 0.5), ("a", "leaked", (found[2],), 0.5)]
    kept.take_explained(explained, "main")
    assert [record.findings[0].count for record in kept.tests] == [0, 1, 1, 2]
    assert [record.verdict for record in kept.tests] == ["leaked", "leaked", "noted", "leaked"]
    assert kept.tests[1] == waiting("a", "gw1")
    assert kept.tests[0].suspect_s == {"check": 1.5, "search": 0.5}


def test_what_a_walk_has_named_is_completed_by_the_search_too() -> None:
    kept = RunRecords()
    named = Holder("module", "app.KEPT", "app.KEPT[0]")
    first = Finding("growing", True, "cpu", 1, 4, 4, "", holder=named, judged=Judged(2, "9 settled"), provisional=True)
    counter = Finding("host", True, "cpu", 1, 4, 4, "", metric="heap", judged=Judged(2, "9 settled"))
    kept.tests.append(waiting("a")._replace(findings=(counter,)))
    kept.tests.append(waiting("a")._replace(findings=(first,)))
    searched = dataclasses.replace(first, other_holders=(named,), provisional=False)
    kept.take_explained([("a", "leaked", (searched,), 0.5)], "main")
    assert [record.findings for record in kept.tests] == [(counter,), (searched,)]


def test_what_a_helper_process_leaks_stays_beside_what_is_explained() -> None:
    kept = RunRecords()
    own, explained = waiting("a").findings[0], Finding("retained", False, "cpu", 1, 4, 4, "")
    there = Finding("growing", True, "cpu", 1, 4, 4, "", process=HelperProcess(7, "Engine"))
    noted = dataclasses.replace(there, failed=False)
    for findings in ((own, there), (own, noted)):
        kept.tests.append(waiting("a")._replace(findings=findings))
    kept.take_explained([("a", "noted", (explained,), 0.5)] * 2, "main")
    assert [(one.verdict, one.findings) for one in kept.tests] == [
        ("leaked", (explained, there)),
        ("noted", (explained, noted)),
    ]


def test_an_explanation_of_a_record_that_was_replaced_is_dropped() -> None:
    kept = RunRecords()
    kept.take_explained([("a", "leaked", (), 0.5)], "main")
    assert kept.tests == []
