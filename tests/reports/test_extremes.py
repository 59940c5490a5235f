"""Every report is rendered from whatever findings hypothesis makes up, and taken apart by the parser of its format."""

from __future__ import annotations

import dataclasses
import functools
import gc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from pytest_gpuleak.model.findings import Holder, KnownLeak, PathStep
from pytest_gpuleak.reports import gitlab, sarif
from pytest_gpuleak.reports.html import page as html
from pytest_gpuleak.reports.html import rows, view
from pytest_gpuleak.reports.json import write as json_report
from tests.reports.conftest import Make
from tests.support.calls import count_calls
from tests.support.extremes import LONGEST, REPORTS
from tests.support.formats import FORMATS, baseline_text, junit_text
from tests.support.hostile import TEXTS, hostile_report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuleak.model.records import RunReport

LIMITS = {
    "terminal -q": 3_000_000,
    "terminal": 1_000_000,
    "terminal -v": 5_000_000,
    "html": 20_000_000,
    "sarif": 80_000_000,
    "markdown": 1_000_000,
    "gitlab": 20_000_000,
    "github": 20_000,
}
"""Characters of the longest report, whatever the run: JSON has everything, JUnit and a baseline what they are given."""

CAPS = {
    "html": ((rows, "MAX_ROWS"), (view, "MAX_TESTS")),
    "sarif": ((sarif, "MAX_RESULTS"),),
    "gitlab": ((gitlab, "MAX_ISSUES"),),
}
"""Of the reports that list thousands: how many. A tenth of it is tried, and its text multiplied: by ten times it takes minutes."""

UNREAD = {"json": json_report.encode_report, "html": html.encode_report, "sarif": sarif.encode_report}
"""Reports that take a parser, or a schema, minutes to read where there are so many findings: read where there are few."""

SMALL = (200_000, 3_000_000)
"""Characters of the longest report of a few findings, and of the JSON report of them, which cuts texts at 4,096."""

LARGE = 100_000

BEYOND_CAPS = 4_000
"""Findings: more than any report lists, of which SARIF and GitLab's have most, 2,500 with a tenth of `CAPS`, and Markdown 3,600."""


@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    deadline=None,
    max_examples=40,
)
@given(report=REPORTS)
def test_any_report_is_written_in_each_format_and_can_be_parsed(report: RunReport) -> None:
    """In one test, since to draw a report takes longer than to render it."""
    texts = {name: render(report) for name, render in FORMATS.items()}
    for name, text in texts.items():
        assert len(text) < SMALL[name == "json"], name
    junit_text(report)


@pytest.mark.parametrize("text", [*TEXTS, LONGEST], ids=range(len(TEXTS) + 1))
def test_a_report_of_one_hostile_text_alone(make: Any, text: str) -> None:
    report = hostile_report(make, text)
    for name, render in {**FORMATS, "junit": junit_text}.items():
        assert len(render(report)) < SMALL[name == "json"]


@pytest.mark.parametrize("text", TEXTS[:-1], ids=range(len(TEXTS) - 1))
def test_a_baseline_of_hostile_texts_is_toml(make: Any, text: str) -> None:
    entries = (KnownLeak(text, None, "growing", text, 4, "00", text, text), KnownLeak(text, text, "cycle", text, 4, ""))
    baseline_text(make.report(stale=entries))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "holder",
    [
        Holder("module", "app.LAST", "app.LAST"),
        Holder("unknown", "", ""),
        Holder("native", "", "", (PathStep("", ""),)),
        Holder("cache", "app.load", "app.load[0]", (), "", None, 5),
    ],
)
def test_a_holder_without_steps_is_shown(make: Any, name: str, holder: Holder) -> None:
    found = make.finding(holder=holder, other_holders=(holder,))
    text = FORMATS[name](make.report(make.test("t.py::test_global", found)))
    assert "test_global" in text
    assert "could not be" not in text.replace("could not be run again", "")


def of_long_lists(make: Any, count: int) -> RunReport:
    """A run with one finding, in which each list has so many entries."""
    steps = tuple(PathStep(f"[{at}]", "list") for at in range(count))
    holder = Holder("module", "app.A", "app.A" + "[0]" * count, steps)
    (array,) = make.finding().tensors
    found = make.finding(
        tensors=(dataclasses.replace(array, shape=(1,) * count), *(array,) * count),
        holder=holder,
        other_holders=tuple(Holder("module", f"app.B{at}", "") for at in range(count)),
        evidence=tuple(f"heap: {at}" for at in range(count)),
    )
    report: RunReport = make.report(make.test("t.py::test_it", found))
    return report


def test_lists_of_a_hundred_thousand_in_one_finding_are_cut(make: Any) -> None:
    """In one test, since to make them takes as long as to render them. JSON has all of them."""
    report = of_long_lists(make, LARGE)
    for name, render in {**FORMATS, "junit": junit_text}.items():
        if name != "json":
            assert len(render(report)) < 300_000, name


@pytest.mark.parametrize("name", [*FORMATS, "junit"])
def test_lists_in_one_finding_take_calls_in_proportion(make: Any, name: str) -> None:
    render = {**FORMATS, "junit": junit_text}[name]
    few, more = of_long_lists(make, BEYOND_CAPS // 40), of_long_lists(make, BEYOND_CAPS // 4)
    assert count_calls(lambda: render(more)) < 12 * count_calls(lambda: render(few)) + 1_000


@example(4300)
@example(5000)
@settings(deadline=None, max_examples=5)
@given(digits=...)
def test_a_number_that_python_does_not_write_costs_its_finding_alone(digits: int) -> None:
    found = Make.finding(bytes=10 ** min(6000, abs(digits)), holder=Holder("module", "app.BAD", "app.BAD"))
    report = Make.report(Make.test("t.py::test_bad", found), Make.test("t.py::test_good", Make.finding()))
    for name, render in FORMATS.items():
        assert "test_good" in render(report), name


@functools.cache
def many(count: int) -> RunReport:
    """A run of many tests with a finding each, of as many holders, workers and devices as there may be.

    The tests that take it come last: every full collection after the first of them walks over it.
    """
    tests = []
    for at in range(count):
        holder = Holder("module", f"app.A{at}", f"app.A{at}[0]", (PathStep("[0]", "list"),), "app.py", 1 + at)
        found = Make.finding(
            bytes=at, holder=holder, failed=at % 3 > 0, known=at % 3 == 0, fingerprint=f"{at:08x}", hint="empty it"
        )
        memory = {"cuda:0": {"allocated_before": at, "allocated_after": 2 * at}}
        tests.append(Make.test(f"t.py::test_it[{at}]", found, worker=f"gw{at % 8}", memory=memory))
    stale = tuple(KnownLeak(f"t.py::test_{at}", None, "growing", "cuda", 4, f"{at:08x}") for at in range(count // 10))
    return Make.report(*tests, stale=stale)


@pytest.fixture
def paused_collector() -> Iterator[None]:
    """No collections: over so many records, a full one takes as long as the report."""
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.usefixtures("paused_collector")
@pytest.mark.parametrize("name", [*FORMATS, "junit", "baseline"])
def test_many_findings_take_calls_in_proportion_and_their_text_is_bounded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    render = {**FORMATS, **UNREAD, "junit": junit_text, "baseline": baseline_text}[name]
    few, more = many(BEYOND_CAPS // 40), many(BEYOND_CAPS // 4)
    assert count_calls(lambda: render(more)) < 12 * count_calls(lambda: render(few)) + 1_000
    for module, cap in CAPS.get(name, ()):
        monkeypatch.setattr(module, cap, getattr(module, cap) // 10)
    if name in LIMITS:
        assert len(render(many(BEYOND_CAPS))) <= LIMITS[name] / (10 if name in CAPS else 1)
