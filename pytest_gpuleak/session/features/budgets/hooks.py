"""Hold tests to their budgets. Imported where a test has the marker `max_gpu_mb`, or the run has the option."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.adapters.bulk import keep_largest, read_live_arrays
from pytest_gpuleak.model.findings import Contribution
from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.session.config.markers import check_each, closest_first
from pytest_gpuleak.session.faults import drop_own_frames
from pytest_gpuleak.session.features.budgets.budget import (
    BUDGET_OPTION,
    NO_DEVICE,
    UNDECIDED,
    Budget,
    Excess,
    describe_excess,
    finding_of,
    judge_budget,
    parse_budget,
    why_not_accepted,
)
from pytest_gpuleak.session.features.budgets.over_budget import TellsUnchecked
from pytest_gpuleak.session.fixture_hooks import PLUGIN_ERRORS
from pytest_gpuleak.session.frameworks import shared_frameworks
from pytest_gpuleak.session.options import BUDGET_MARKER
from pytest_gpuleak.session.peak_hooks import BUDGET_FINDING, shared_meter

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpuleak.engine.detect.peak_meter import PeakMeter
    from pytest_gpuleak.model.readings import ArrayReading
    from pytest_gpuleak.session.features.budgets.estimating import Estimator

BLOCKS_SHOWN = 5


def hold_to_budgets(
    config: pytest.Config, items: list[pytest.Item], default: int | None, *, estimate: bool = False
) -> None:
    """Check the markers and register the hooks. Raises pytest.UsageError for a marker that is not accepted."""
    check_each(items, why_not_accepted, BUDGET_MARKER)
    if not config.option.collectonly:
        meter = shared_meter(config)
        estimator = None
        if estimate:
            from pytest_gpuleak.session.features.budgets.estimating import Estimator

            estimator = Estimator(config, meter)
        config.pluginmanager.register(BudgetHooks(meter, default, estimator), "gpuleak-budgets")


class BudgetHooks(TellsUnchecked):
    """Hold one process's tests to their budgets; `default` is in bytes, None: no limit. Without a device, by estimates."""

    def __init__(self, meter: PeakMeter, default: int | None, estimator: Estimator | None = None) -> None:
        super().__init__()
        self._meter, self._estimator = meter, estimator
        self._default = None if default is None else Budget(default, source=BUDGET_OPTION)
        self._excess: Excess | None = None
        self._states: dict[str, int] = {}
        """By device the bytes that libraries are known to keep for the whole process."""
        self._there: tuple[Contribution, ...] = ()
        self._open = False
        """Whether the excess is to be explained, or decided on, once the teardown is over."""
        self._duration_s = 0.0
        self._nextitem: pytest.Item | None = None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Request frameworks from a conftest.py where the leak check, which otherwise does it, is off."""
        config = session.config
        if config.hook.pytest_gpuleak_arrays.get_hookimpls() and not config.pluginmanager.hasplugin("gpuleak-session"):
            from pytest_gpuleak.session.safeguards import shared_attempts
            from pytest_gpuleak.session.user_hooks import bring_frameworks

            attempts = shared_attempts(config)
            bring_frameworks(config, attempts.faults, attempts)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Forget what an earlier attempt exceeded, and measure without workspaces if the test has a budget."""
        if self._meter.judges:
            self._excess, self._open, self._duration_s = None, False, 0.0
            if BUDGET_FINDING in item.stash:
                del item.stash[BUDGET_FINDING]
            self._unchecked.pop(item.nodeid, None)
            has_budget = self._default is not None or bool(closest_first(item, BUDGET_MARKER))
            if has_budget:
                self._meter.begin(apart=True)
            if self._estimator is not None:
                self._estimator.drop()
                if has_budget:
                    self._estimator.begin()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Judge within a call that has passed, so that the failure is an ordinary failure for xfail and reruns too."""
        __tracebackhide__ = True  # a failure's text shows only the user's frames, as without the plugin
        try:
            result = yield
        finally:
            if self._estimator is not None:
                self._estimator.end()
        # No re-run is judged. unittest keeps failures and skips on the item and raises nothing.
        if self._meter.judges and not getattr(item, "_excinfo", None):
            text = self._judge(item)
            if text is not None:
                __tracebackhide__ = False  # pytest 9 says of a failure without frames that they are hidden
                pytest.fail(text, pytrace=False)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> None:
        """Note which fixtures are to stay: a re-run's teardown must leave the same."""
        self._nextitem = nextitem
        if self._estimator is not None:
            self._estimator.drop()  # after a setup that failed there was no call

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Explain the peak of a failed test once its teardown is over.

        Hide the plugin's frames from a failure where the leak check, which otherwise does it, is off.
        """
        if call.excinfo is not None:
            drop_own_frames(call.excinfo.value)
        report = yield
        if self._excess is not None:
            self._duration_s += report.duration
            if call.when == "call":
                # An expected failure needs no explanation, and nothing hangs on what an expected one has exceeded.
                self._open = not hasattr(report, "wasxfail") and report.failed is self._excess.certain
            elif call.when == "teardown":
                excess, self._excess = self._excess, None
                if self._open:
                    self._explain(item, excess, report)
        return report

    def _explain(self, item: pytest.Item, excess: Excess, report: pytest.TestReport) -> None:
        """Add a section to the report that tells what filled the memory, and the peak to the finding.

        An excess that is not certain fails the report if the peak of the re-run, without workspaces, is over the budget.
        """
        from pytest_gpuleak.session.features.budgets.explaining import SECTION, Explained, explain_excess
        from pytest_gpuleak.session.features.budgets.measured_run import EndedTest, running_attempts

        test = EndedTest(item, self._nextitem, self._duration_s)
        try:
            found = explain_excess(test, excess, self._meter, running_attempts(item))
        except PLUGIN_ERRORS as error:  # the budget was exceeded all the same
            found = Explained(None, clean_text(f"not recorded: {type(error).__name__}: {error}", 200))
        if not excess.certain:
            if found is None or found.counted is None:
                self._unchecked[item.nodeid] = UNDECIDED
                return
            excess = excess._replace(peak=found.counted)
            if not excess.certain:
                return
            alive = _alive_on(item.config, excess.device)
            item.stash[BUDGET_FINDING] = finding_of(excess, alive, self._there)
            report.outcome = "failed"
            report.longrepr = describe_excess(excess, alive, self._there)
        if found is not None:
            report.sections.append((SECTION, found.text))
            item.stash[BUDGET_FINDING] = dataclasses.replace(item.stash[BUDGET_FINDING], peak=found.peak)

    def _judge(self, item: pytest.Item) -> str | None:
        marks = closest_first(item, BUDGET_MARKER)
        try:
            budget = parse_budget(marks[0]) if marks else self._default
        except ValueError as error:
            self._unchecked[item.nodeid] = str(error)
            return None
        if budget is None:
            return None
        peaks = self._meter.peaks()
        if self._meter.fault:
            self._unchecked[item.nodeid] = f"the device's counters failed ({clean_text(self._meter.fault, 120)})"
            return None
        verdict = judge_budget(budget, peaks)
        if verdict == NO_DEVICE and self._estimator is not None:
            verdict = self._estimator.judge(budget)
        if isinstance(verdict, str):
            self._unchecked[item.nodeid] = verdict
        if not isinstance(verdict, Excess):
            return None
        if verdict.certain and not budget.total:
            verdict = self._without_states(item, verdict)
        self._excess = verdict
        self._there = isolated(partial(_there_before, item, verdict), lambda _: ())
        if not verdict.certain:
            return None
        alive = () if verdict.percent else _alive_on(item.config, verdict.device)
        item.stash[BUDGET_FINDING] = finding_of(verdict, alive, self._there)
        return describe_excess(verdict, alive, self._there)

    def _without_states(self, item: pytest.Item, excess: Excess) -> Excess:
        """Return an excess that hangs on what a library keeps for the whole process as one that is not certain.

        The first test that uses the library allocates it: a re-run has it from before. What is known is an earlier test's.
        """
        states = sum(shared_frameworks(item.config).library_states(excess.device))
        known = self._states.get(excess.device, 0)
        self._states[excess.device] = max(states, known)
        new = states - known
        if excess.over > new:
            return excess
        return excess._replace(peak=excess.peak - new, workspaces=excess.workspaces + new)


def _there_before(item: pytest.Item, excess: Excess) -> tuple[Contribution, ...]:
    """Return which fixtures have what was there before, while they are set up."""
    from pytest_gpuleak.session.features.budgets.explaining import held_by_fixtures  # loaded for an excess alone

    return held_by_fixtures(item, excess.device, shared_frameworks(item.config).arrays) if excess.before else ()


def _alive_on(config: pytest.Config, device: str) -> tuple[Contribution, ...]:
    """Return the largest arrays on a device; none where they cannot be read: the budget was exceeded all the same."""
    from pytest_gpuleak.session.features.out_of_memory import group_readings  # loaded for an excess alone

    def read() -> tuple[Contribution, ...]:
        readings: dict[int, ArrayReading] = {}
        for _, reading in read_live_arrays(shared_frameworks(config).arrays):
            if reading.device == device:
                keep_largest(readings, reading)
        largest = group_readings(readings.values())[:BLOCKS_SHOWN]
        return tuple(Contribution(clean_text(row.owner, 80), row.bytes, row.count) for row in largest)

    return isolated(read, lambda _: ())
