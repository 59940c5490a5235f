"""Run tests again for their peaks, right after their teardown, in the process that ran them.

Which are heaviest is known only at the end of a run, when fixtures are gone: so each test that is among the heaviest so far is
run again at once, which the heaviest of all were in their turn. Where no device is used nothing counts a test's peak, so
each test is run again. The leak check has judged a test by then, and begins the next one after the re-run, so that what a re-run
leaves counts for none. No outcome depends on these re-runs but by the file of peaks.
"""

from __future__ import annotations

import heapq
import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.model.peaks import CPU, Taken
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.session.features.budgets.budget import Budget, Excess
from pytest_gpuleak.session.features.budgets.over_budget import fail_after_teardown
from pytest_gpuleak.session.fixture_hooks import PLUGIN_ERRORS
from pytest_gpuleak.session.peak_hooks import BUDGET_FINDING
from pytest_gpuleak.session.report_record import amend, verdict_of
from pytest_gpuleak.session.safeguards import shared_attempts

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpuleak.engine.detect.peak_meter import PeakMeter
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.peak_parts import Peak
    from pytest_gpuleak.model.peaks import DevicePeak
    from pytest_gpuleak.session.features.peaks.ratchet import Ratchet

PEAK_ATTRIBUTE = "gpu_leak_peak"
"""The attribute of a teardown's report with what is known of the test's peak; xdist sends it along."""


class PeakHooks:
    """Record peaks of one process's tests: those of the `number` heaviest, and those that the `ratchet` needs."""

    def __init__(self, meter: PeakMeter, number: int, ratchet: Ratchet) -> None:
        self._meter = meter
        self._number = number
        self._ratchet = ratchet
        self._heaviest: dict[bool, list[int]] = {False: [], True: []}  # a heap of bytes; True: of CPU tensors
        self._process = os.getpid()
        self._nextitem: pytest.Item | None = None
        self._passed = True
        self._duration_s = 0.0
        self._peaks: dict[str, DevicePeak] = {}
        self._finding: Finding | None = None
        self._peak: Peak | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Forget the test before, and measure without workspaces: the order of the tests decides which allocates them."""
        if self._meter.judges:
            self._meter.begin(apart=True)
            self._passed, self._duration_s, self._peaks = True, 0.0, {}
            self._finding = self._peak = None

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Read the peaks before the teardown, as budgets do."""
        __tracebackhide__ = True
        result = yield
        if self._meter.judges:
            self._peaks = self._meter.peaks()
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> None:
        """Note which fixtures are to stay: a re-run's teardown must leave the same."""
        self._nextitem = nextitem

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Run a test again that has passed, once its teardown is over."""
        report = yield
        if os.getpid() != self._process or shared_attempts(item.config).rerunning:
            return report
        self._duration_s += report.duration
        self._passed &= report.passed and not hasattr(report, "wasxfail")
        if call.when == "teardown":
            try:
                told = self._tell(item) if self._passed else self._tell_of_budget(item)
            except PLUGIN_ERRORS as error:  # the test's outcome stands
                told = {"why": clean_text(f"{type(error).__name__}: {error}", 200)}
            if told:
                setattr(report, PEAK_ATTRIBUTE, told)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Put the peak into the test's record, and fail the test whose peak has grown, before anyone reads the report."""
        told: dict[str, Any] | None = getattr(report, PEAK_ATTRIBUTE, None)
        if told is not None and os.getpid() == self._process:
            self._attach(report)
            if told.get("fails"):
                fail_after_teardown(report, told["text"])
        return (yield)

    def _attach(self, report: pytest.TestReport) -> None:
        verdict = verdict_of(report)
        if verdict is None or (self._peak is None and self._finding is None):
            return
        if self._finding is not None and verdict == "clean":
            verdict = "noted"  # nothing has leaked, and there is a finding
        amend(report, self._finding, peak=self._peak, verdict=verdict)

    def _tell(self, item: pytest.Item) -> dict[str, Any]:
        """Return what is known of a passed test's peak, after the re-run that is needed for it; empty: nothing is."""
        taken = _most_taken(self._peaks)
        if taken is None:
            return {}
        ratchet = self._ratchet
        wanted = ratchet.needs_parts(item.nodeid, taken)
        if not wanted and not self._is_heavy(taken):
            return ratchet.compare(item.nodeid, taken, None)
        peak, why = self._record(item, taken)
        if peak is None:
            if not why and (taken.bytes or wanted):
                why = f"nothing records what fills the memory of {taken.device}"
            told = ratchet.compare_unexplained(item.nodeid, taken, why)
            self._finding = ratchet.finding_of(taken, None, told)
            return told or ({"why": why} if why else {})
        if taken.bytes is None:
            taken = Taken(CPU, peak.bytes)
        told = ratchet.compare(item.nodeid, taken, peak)
        self._finding = ratchet.finding_of(taken, peak, told)
        return self._with_peak(told, taken, peak)

    def _with_peak(self, told: dict[str, Any], taken: Taken, peak: Peak) -> dict[str, Any]:
        """Return what is told with the peak, if it is among the heaviest so far."""
        if not self._keep(taken):
            self._peak = peak if told else None
            return told
        from pytest_gpuleak.model.finding_codec import encode

        self._peak = peak
        return {**told, "peak": encode(peak)}

    def _tell_of_budget(self, item: pytest.Item) -> dict[str, Any]:
        """Return the peak of a test over its budget, which was explained for that."""
        finding = item.stash.get(BUDGET_FINDING, None)
        if finding is None or finding.peak is None:
            return {}
        return self._with_peak({}, Taken(finding.device, finding.peak.bytes), finding.peak)

    def _is_heavy(self, taken: Taken) -> bool:
        """Tell whether a test may be among the heaviest so far, of those on devices or of the others."""
        if not self._number:
            return False
        heaviest = self._heaviest[taken.device == CPU]
        return taken.bytes is None or len(heaviest) < self._number or taken.bytes > heaviest[0]

    def _keep(self, taken: Taken) -> bool:
        """Tell whether a test is among the heaviest so far, and count it as one of them."""
        size, heaviest = taken.bytes or 0, self._heaviest[taken.device == CPU]
        if not self._number or not size:
            return False
        if len(heaviest) < self._number:
            heapq.heappush(heaviest, size)
            return True
        return size > heapq.heappushpop(heaviest, size)

    def _record(self, item: pytest.Item, taken: Taken) -> tuple[Peak | None, str]:
        """Run a test once more as for a failed budget, and return its peak, or why there is none; empty: nothing records it."""
        from pytest_gpuleak.session.features.budgets.explaining import explain_excess
        from pytest_gpuleak.session.features.budgets.measured_run import EndedTest, between_tests

        excess = Excess(Budget(0), taken.device, 0, 0)
        if taken.bytes is not None:
            counted = self._peaks[taken.device].allocated
            excess = excess._replace(peak=taken.bytes, before=counted.before, workspaces=counted.workspaces)
        test = EndedTest(item, self._nextitem, self._duration_s)
        with between_tests(item) as attempts:
            found = explain_excess(test, excess, self._meter, attempts)
        if found is None:
            return None, ""
        return found.peak, found.text.removeprefix("not recorded: ")


def _most_taken(peaks: dict[str, DevicePeak]) -> Taken | None:
    """Return what a test has taken of the device of which it took most; None: a device is in use, and it took nothing."""
    taken = [Taken(device, peak.allocated.own) for device, peak in peaks.items() if peak.allocated.own > 0]
    if taken:
        return max(taken, key=lambda one: one.bytes or 0)
    return None if peaks else Taken(CPU, None)
