"""The session's account, with the records of clean tests and without."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuleak.model.findings import WAITING, Finding, Holder, Judged
from pytest_gpuleak.model.outcomes import TestRecord, Verdict
from pytest_gpuleak.model.policy import Policy, Settings
from pytest_gpuleak.session.records.run_records import RunRecords

SECONDS = st.floats(0, 100)
FOUND = (Finding("cycle", False, "cpu", 1, 4, 0, ""),)


@st.composite
def records(draw: st.DrawFn) -> TestRecord:
    """A test's record."""
    verdict: Verdict = draw(st.sampled_from(["clean", "noted", "unchecked"]))
    nodeid = f"test_it.py::test_{draw(st.integers(0, 20))}"
    findings = FOUND if verdict == "noted" else ()
    suspect_s = draw(st.sampled_from([{}, {"check": 1.0, "reruns": 0.5, "search": 0.25}]))
    return TestRecord(
        nodeid,
        verdict,
        None,
        "passed",
        "main",
        draw(SECONDS),
        draw(SECONDS),
        findings=findings,
        suspect_s=suspect_s,
        rerun=verdict != "noted" and draw(st.booleans()),
    )


@given(st.lists(records()))
def test_the_summary_is_the_same_without_the_records(tests: list[TestRecord]) -> None:
    detailed, brief = RunRecords(), RunRecords(detailed=False)
    for test in tests:
        detailed.add_test(test)
        brief.add_test(test)
    whole, short = (one.summary(Settings(True, Policy()), on_file=False) for one in (detailed, brief))
    # Added up in another order, sums of floats differ in the last digits.
    for name in ("overhead_s", "duration_s"):
        assert abs(whole.pop(name) - short.pop(name)) < 1e-6 * (1 + len(tests))
    assert short == whole
    assert brief.nodeids() == detailed.nodeids()
    kept = [test for test in tests if test.verdict != "clean" or test.suspect_s or test.rerun]
    assert brief.tests == kept


def waiting(nodeid: str, worker: str = "main") -> TestRecord:
    finding = Finding("growing", True, "cpu", 1, 4, 4, "", holder=WAITING)
    return TestRecord(nodeid, "leaked", None, "passed", worker, 1.0, 0.0, findings=(finding,), suspect_s={"check": 1.0})


def test_explained_findings_replace_those_that_waited_attempt_by_attempt() -> None:
    kept = RunRecords()
    for record in (waiting("a"), waiting("a", "gw1"), waiting("b"), waiting("a")):
        kept.add_test(record)
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
    kept.add_test(waiting("a")._replace(findings=(counter,)))
    kept.add_test(waiting("a")._replace(findings=(first,)))
    searched = dataclasses.replace(first, other_holders=(named,), provisional=False)
    kept.take_explained([("a", "leaked", (searched,), 0.5)], "main")
    assert [record.findings for record in kept.tests] == [(counter,), (searched,)]


def test_an_explanation_of_a_record_that_was_replaced_is_dropped() -> None:
    kept = RunRecords()
    kept.take_explained([("a", "leaked", (), 0.5)], "main")
    assert kept.tests == []
