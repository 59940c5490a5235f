"""Several reports as one: what was found stays found, whatever the order and grouping."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuleak.cli.merge import DIFFERING, GRAVITY, Merger, merge_reports
from pytest_gpuleak.model.findings import FixtureRecord, KnownLeak
from pytest_gpuleak.model.records import RunReport, TestRecord, Verdict
from tests.reports.conftest import Make

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding

FINDINGS = st.builds(
    lambda failed, known, size, mark: Make.finding(
        failed=failed, known=known and not failed, bytes=size, fingerprint=mark, tensors=(), holder=None
    ),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
    st.sampled_from(["aa", "bb"]),
)


@st.composite
def records_of(draw: st.DrawFn, names: str) -> TestRecord:
    verdict = draw(st.sampled_from(get_args(Verdict)))
    findings = () if verdict == "clean" else tuple(draw(st.lists(FINDINGS, max_size=3)))
    return Make.test(draw(st.sampled_from(names)), *findings, verdict=verdict, duration_s=draw(st.integers(0, 9)) / 1.0)


def reports_of(names: str) -> st.SearchStrategy[RunReport]:
    return st.lists(records_of(names), max_size=4).map(lambda tests: Make.report(*tests))


def state(report: RunReport) -> dict[str, tuple[str, list[tuple[Any, ...]]]]:
    """What must not depend on how reports are grouped."""
    return {test.nodeid: (test.verdict, sorted(map(signs, test.findings))) for test in report.tests}


def signs(finding: Finding) -> tuple[Any, ...]:
    return finding.device, finding.fingerprint, finding.bytes, finding.failed, finding.known


@settings(max_examples=25, deadline=None)
@given(reports_of("abc"), reports_of("abc"), reports_of("abc"))
def test_grouping_does_not_matter(one: RunReport, two: RunReport, three: RunReport) -> None:
    at_once = merge_reports([one, two, three])
    assert state(at_once) == state(merge_reports([merge_reports([one, two]), three]))
    assert state(at_once) == state(merge_reports([one, merge_reports([two, three])]))


@settings(max_examples=20, deadline=None)
@given(reports_of("abc"))
def test_a_report_merged_with_itself_is_the_same(one: RunReport) -> None:
    once = merge_reports([one])
    assert merge_reports([once]).tests == once.tests
    assert state(merge_reports([once, once])) == state(once)


@settings(max_examples=20, deadline=None)
@given(reports_of("abc"), reports_of("def"), reports_of("ghi"))
def test_the_order_of_shards_does_not_matter(one: RunReport, two: RunReport, three: RunReport) -> None:
    whole = {test.nodeid: test for test in merge_reports([one, two, three]).tests}
    for order in itertools.permutations([one, two, three]):
        assert {test.nodeid: test for test in merge_reports(order).tests} == whole


@settings(max_examples=20, deadline=None)
@given(reports_of("ab"), reports_of("ab"))
def test_no_verdict_becomes_milder_and_no_failing_finding_is_lost(one: RunReport, two: RunReport) -> None:
    merged = {test.nodeid: test for test in merge_reports([one, two]).tests}
    for test in (*one.tests, *two.tests):
        settled = merged[test.nodeid]
        assert GRAVITY[settled.verdict] >= GRAVITY[test.verdict]
        if test.verdict != "unchecked":
            marks = {found.fingerprint for found in settled.findings if found.failed}
            assert marks >= {found.fingerprint for found in test.findings if found.failed}


@pytest.mark.parametrize(
    ("first", "second", "settled"),
    [
        ("unchecked", "clean", "clean"),
        ("clean", "unchecked", "clean"),
        ("leaked", "clean", "leaked"),
        ("allowed", "noted", "allowed"),
        ("leaked", "allowed", "leaked"),
        ("noted", "unchecked", "noted"),
    ],
)
def test_the_gravest_verdict_counts(first: Verdict, second: Verdict, settled: str, make: type[Make]) -> None:
    one, two = make.report(make.test("a", verdict=first)), make.report(make.test("a", verdict=second))
    assert merge_reports([one, two]).tests[0].verdict == settled


def test_of_equals_the_later_counts(make: type[Make]) -> None:
    one, two = make.report(make.test("a", duration_s=1.0)), make.report(make.test("a", duration_s=2.0))
    assert merge_reports([one, two]).tests[0].duration_s == 2.0
    assert merge_reports([two, one]).tests[0].duration_s == 1.0


def test_attempts_in_one_report_become_one_record(make: type[Make]) -> None:
    report = make.report(make.test("a", make.finding()), make.test("b"), make.test("a"))
    merged = merge_reports([report])
    assert [(test.nodeid, test.verdict) for test in merged.tests] == [("a", "leaked"), ("b", "clean")]
    assert merged.summary["tests"] == 2


def test_the_larger_of_two_alike_findings_stands_and_others_are_added(make: type[Make]) -> None:
    small, large, other = (
        make.finding(bytes=size, fingerprint=mark) for size, mark in ((1, "aa"), (2, "aa"), (3, "bb"))
    )
    merged = merge_reports([make.report(make.test("a", large)), make.report(make.test("a", small, other))])
    assert [found.bytes for found in merged.tests[0].findings] == [3, 2]


def test_two_findings_of_one_test_that_digits_alone_tell_apart_stay_two(make: type[Make]) -> None:
    layers = [make.finding(bytes=size, fingerprint="aa") for size in (10, 5)]
    report = make.report(make.test("a", *layers))
    assert [found.bytes for found in merge_reports([report, report]).tests[0].findings] == [10, 5]


def test_a_leak_that_one_report_fails_is_not_known(make: type[Make]) -> None:
    known = make.finding(failed=False, known=True)
    reports = [make.report(make.test("a", known)), make.report(make.test("a", make.finding()))]
    for order in (reports, reports[::-1]):
        (finding,) = merge_reports(order).tests[0].findings
        assert (finding.failed, finding.known) == (True, False)


def test_a_budget_is_judged_anew_by_a_retry_that_was_checked(make: type[Make]) -> None:
    over = make.test("a", make.finding(kind="budget"), verdict="unchecked", why_unchecked="it failed")
    merged = merge_reports([make.report(over), make.report(make.test("a"))])
    assert (merged.tests[0].verdict, merged.tests[0].findings) == ("clean", ())
    assert merge_reports([make.report(over), make.report(over)]).tests[0].findings == over.findings


def test_fixtures_are_united(make: type[Make]) -> None:
    one = FixtureRecord("model", "module", "t.py", (make.finding(fingerprint="aa", failed=False),), allowed="it may")
    two = FixtureRecord("model", "module", "t.py", (make.finding(fingerprint="bb"),))
    other = FixtureRecord("model", "module", "u.py", (make.finding(fingerprint="cc"),))
    merged = merge_reports([make.report(fixtures=(one,)), make.report(fixtures=(two, other))])
    assert [(record.baseid, len(record.findings), record.allowed) for record in merged.fixtures] == [
        ("t.py", 2, None),
        ("u.py", 1, None),
    ]
    assert merged.summary["fixtures_leaked"] == 2


def test_incomplete_parts_are_named(make: type[Make]) -> None:
    reports = [make.report(make.test("a")), make.report(make.test("b"), incomplete="killed")]
    assert merge_reports(reports).incomplete == "report 2: killed"
    merger = Merger()
    for report, name in zip(reports, ("one.json", "two.json"), strict=True):
        merger.add(report, name)
    assert merger.report().incomplete == "two.json: killed"
    assert merge_reports(reports[:1]).incomplete is None


def test_an_entry_is_stale_where_all_that_can_tell_say_so(make: type[Make]) -> None:
    entry = KnownLeak("t.py::test_x", None, "growing", "cuda", 5, "aa")

    def shard(name: str, *findings: Finding, stale: bool = False, verdict: Verdict | None = None) -> RunReport:
        test = make.test(name, *findings)
        test = test if verdict is None else test._replace(verdict=verdict)
        report = make.report(test, stale=(entry,) if stale else ())
        return dataclasses.replace(report, summary={**report.summary, "stale": int(stale), "known": 0})

    gone, elsewhere = shard("t.py::test_x[1]", stale=True), shard("t.py::test_y")
    known = shard("t.py::test_x[2]", make.finding(fingerprint="aa", failed=False, known=True))
    kept = shard("t.py::test_x[2]", make.finding(fingerprint="ab", failed=False, known=True))
    unchecked = shard("t.py::test_x[2]", verdict="unchecked")
    roamed = shard("t.py::test_y", make.finding(fingerprint="aa", failed=False, known=True))
    for parts, stale in (
        ([gone], 1),
        ([gone, gone], 1),
        ([gone, elsewhere], 1),
        ([gone, unchecked], 1),
        ([gone, known], 0),
        ([gone, kept], 0),
        ([gone, roamed], 0),
    ):
        for order in (parts, parts[::-1]):
            merged = merge_reports(order)
            assert (len(merged.stale), merged.summary["stale"]) == (stale, stale)


def test_what_reports_do_not_agree_on_is_listed(make: type[Make]) -> None:
    parts = [
        make.report(
            environment={"python": python, "torch": torch, "platform": "Linux", "devices": devices},
            policy={"confirm": confirm, "scan": "epoch"},
        )
        for python, torch, devices, confirm in (("3.10", None, ["a"], 1), ("3.11", "2.13", ["b", "a"], 2))
    ]
    merged = merge_reports(parts)
    assert merged.environment == {
        "python": "3.10, 3.11",
        "torch": "2.13",
        "platform": "Linux",
        "devices": ["a", "b"],
        DIFFERING: {"python": ["3.10", "3.11"], "torch": [None, "2.13"], "devices": [["a"], ["b", "a"]]},
    }
    assert merged.policy == {"confirm": 1, "scan": "epoch", DIFFERING: {"confirm": [1, 2]}}
    again = merge_reports([merged, *parts])
    assert (again.environment, again.policy) == (merged.environment, merged.policy)


def test_memory_of_several_runs(make: type[Make]) -> None:
    def part(name: str, drift: int, peak: int) -> RunReport:
        heaviest = [{"nodeid": name, "device": "cuda:0", "bytes": peak, "what": "peak"}]
        usage = {"drift": {"cuda:0": {"allocated": drift}}, "peaks": {"cuda:0": peak}, "heaviest": heaviest}
        return make.report(make.test(name), summary={"memory": usage, "budgets_unchecked": 2})

    summary = merge_reports([part("a", 5, 10), part("b", -1, 20), part("a", 0, 8)]).summary
    assert summary["memory"]["drift"] == {"cuda:0": {"allocated": 4}}
    assert summary["memory"]["peaks"] == {"cuda:0": 20}
    assert [entry["nodeid"] for entry in summary["memory"]["heaviest"]] == ["b"]
    assert summary["budgets_unchecked"] == 6


def test_the_latest_time_counts_whatever_its_offset(make: type[Make]) -> None:
    times = ["2026-11-20T12:00:00+00:00", "2026-11-20T13:30:00+02:00", "2026-11-20T09:00:00Z"]
    assert merge_reports(make.report(created=time) for time in times).created == times[0]
