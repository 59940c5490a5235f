"""Hold tests to their budgets of host memory: `max_host_mb`. Imported where a test has the marker.

What a first run takes depends on what earlier tests have imported and cached, and measuring it would slow the run whose
outcome counts. So each test that has a budget and has passed is run once more, by the rules of a suspect's re-run, and
measured there (`adapters.host.heap_peak`); one that is over its budget is run again for the lines.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.adapters.host.heap_peak import HeapPeak, LinesAtPeak
from pytest_gpuleak.heap.collector import collect_whole
from pytest_gpuleak.model.findings import Contribution, Finding
from pytest_gpuleak.model.peak_parts import Peak, located
from pytest_gpuleak.model.source_files import is_user_file
from pytest_gpuleak.model.text import clean_text, format_bytes
from pytest_gpuleak.reports.terminal.peak import render_peak
from pytest_gpuleak.session.config.markers import check_each, closest_first
from pytest_gpuleak.session.features.budgets.budget import Budget, parse_budget, peak_finding, why_not_accepted
from pytest_gpuleak.session.features.budgets.measured_run import EndedTest, MeasuredRun, between_tests
from pytest_gpuleak.session.features.budgets.over_budget import ShowsExcess, TellsUnchecked, fail_after_teardown
from pytest_gpuleak.session.fixture_hooks import PLUGIN_ERRORS
from pytest_gpuleak.session.frameworks import shared_frameworks
from pytest_gpuleak.session.options import HOST_BUDGET_MARKER
from pytest_gpuleak.session.peak_hooks import shared_meter
from pytest_gpuleak.session.report_record import amend, verdict_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pytest_gpuleak.engine.detect.peak_meter import PeakMeter

PURPOSE = "to measure its peak of host memory"


def hold_to_host_budgets(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check the markers and register the hooks. Raises pytest.UsageError for a marker that is not accepted."""
    check_each(items, why_not_accepted, HOST_BUDGET_MARKER)
    if not config.option.collectonly:
        config.pluginmanager.register(HostBudgetHooks(shared_meter(config)), "gpuleak-host-budgets")


class HostBudgetHooks(TellsUnchecked, ShowsExcess):
    """Measure one process's tests that have a budget, between each and the next."""

    def __init__(self, meter: PeakMeter) -> None:
        super().__init__()
        self._meter = meter
        self._items: tuple[pytest.Item, pytest.Item | None] | None = None
        self._has_passed = False
        self._duration_s = 0.0

    @pytest.hookimpl(tryfirst=True)  # plugins that repeat tests answer this hook, and end it
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Note the test if it has a budget."""
        self._items = (item, nextitem) if closest_first(item, HOST_BUDGET_MARKER) else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Measure a test that has passed before its teardown's report is logged, and fail that if it is over its budget."""
        if self._items is not None and report.nodeid == self._items[0].nodeid:
            if report.when == "setup":
                self._has_passed, self._duration_s = True, 0.0
                self._unchecked.pop(report.nodeid, None)
            self._has_passed &= report.passed or verdict_of(report) == "leaked"
            if report.passed and hasattr(report, "wasxfail"):
                self._has_passed = False
                self._unchecked[report.nodeid] = (
                    "the test is expected to fail, and too large a peak would be no failure"
                )
            self._duration_s += report.duration
            if report.when == "teardown" and self._has_passed:
                self._judge(report, *self._items)
        return (yield)

    def _judge(self, report: pytest.TestReport, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        try:
            budget = parse_budget(closest_first(item, HOST_BUDGET_MARKER)[0])
            peak = self._measure(EndedTest(item, nextitem, self._duration_s), budget)
        except PLUGIN_ERRORS as error:  # a marker that was added late among them
            self._unchecked[item.nodeid] = clean_text(f"{type(error).__name__}: {error}", 200)
            return
        if isinstance(peak, str):
            self._unchecked[item.nodeid] = peak
            return
        if peak is None:
            return
        fail_after_teardown(report, describe_excess(budget, peak))
        amend(report, finding_of(budget, peak), outcome="failed")

    def _measure(self, test: EndedTest, budget: Budget) -> Peak | str | None:
        """Return the peak of a test over its budget, why it could not be measured, or None where the budget is held."""
        root = str(test.item.config.rootpath)
        found = self._run(test, None)
        if isinstance(found, str) or found.bytes <= budget.bytes:
            return found if isinstance(found, str) else "; ".join(found.lacks) or None
        told = self._run(test, LinesAtPeak(found.bytes, lambda file: is_user_file(file, root)))
        if isinstance(told, str):
            return dataclasses.replace(found, lacks=(*found.lacks, told))
        return located(dataclasses.replace(told, lacks=tuple(dict.fromkeys((*found.lacks, *told.lacks)))), root)

    def _run(self, test: EndedTest, lines: LinesAtPeak | None) -> Peak | str:
        """Run the test again and return its peak, or why it was not measured."""
        heap, frameworks, lacks = HeapPeak(lines), shared_frameworks(test.item.config), list[str]()

        @contextlib.contextmanager
        def measured() -> Iterator[None]:
            with frameworks.counted_on_host(heap, lacks), heap:
                yield

        with between_tests(test.item) as attempts:
            rerun = MeasuredRun(test, attempts, PURPOSE)
            if rerun.why_not:
                return rerun.why_not
            rerun.release()
            with frameworks.counted_on_host(heap, []):
                pass  # what a framework loads for its first count is no part of the test's time or memory
            collect_whole()  # garbage of earlier tests is collected now, not at a time that depends on them
            why = rerun.run(self._meter, heap, measured()) or heap.why_not
            if why:
                return why
            peak = heap.peak("cpu")
            return dataclasses.replace(peak, lacks=(*peak.lacks, *lacks))


def describe_excess(budget: Budget, peak: Peak) -> str:
    """Write the failed test's text."""
    size, over, allowed = map(format_bytes, (peak.bytes, peak.bytes - budget.bytes, budget.bytes))
    title = f"{budget.source}: peak of {size} on the host is {over} over the budget of {allowed.replace('.0 ', ' ')}"
    return "\n".join([f"{title} (measured in a re-run after teardown)", *render_peak(peak, budget.bytes)])


def finding_of(budget: Budget, peak: Peak) -> Finding:
    """Make the report's finding of an exceeded budget. Its `bytes` are what counted against the budget."""
    return peak_finding(
        "budget host",
        peak.device,
        peak.bytes,
        metric="heap",
        contributions=tuple(
            Contribution(
                f"{part.created.file}:{part.created.line} ({part.category})", part.bytes, part.count, part.created
            )
            for part in peak.parts
            if part.created is not None
        ),
        evidence=(
            f"peak: {format_bytes(peak.bytes)} over what was before, in a re-run",
            f"budget: {format_bytes(budget.bytes)}, by {budget.source}",
            f"excess: {format_bytes(peak.bytes - budget.bytes)}",
        ),
        peak=peak,
    )
