"""Follow a test's phases and fixtures. Registered after collection, so that the hooks are the outermost."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.heap.collector import PausedCollector
from pytest_gpuleak.session.config.markers import policy_of
from pytest_gpuleak.session.fixture_hooks import PLUGIN_ERRORS, FixtureHooks
from pytest_gpuleak.session.fixtures import finalizers_of_nodes, may_free
from pytest_gpuleak.session.report_record import RECORD_ATTRIBUTE, attach, fail, note_properties

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from pytest_gpuleak.engine.detect.peak_meter import PeakMeter
    from pytest_gpuleak.session.features.leak_fails import LeakFails
    from pytest_gpuleak.session.features.out_of_memory import OutOfMemorySection
    from pytest_gpuleak.session.leak_check import LeakCheck

QUIET_VERDICTS = ("clean", "noted")
"""Verdicts that leave the report's outcome and letter alone, so that the record can be dropped from it."""


class RuntestHooks(FixtureHooks):
    """Report tests, and fixtures that outlive them, to the leak check; `meter` is None where peaks are not needed."""

    def __init__(self, check: LeakCheck, meter: PeakMeter | None) -> None:
        super().__init__(
            [check] if meter is None else [check, meter],
            lambda request: policy_of(request.node, check.settings),
            check.knowledge.shorten,
        )
        self._check = check
        self._attempts = check.attempts
        self._meter = meter
        self._shortages: OutOfMemorySection | None = None
        self._nextitem: pytest.Item | None = None
        self._fails: LeakFails | None = None
        self._fault = ""
        self._sends = hasattr(check.config, "workerinput")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Begin an attempt. Not in the protocol, since plugins that repeat tests run several attempts in one."""
        __tracebackhide__ = True  # a failure's text shows only the user's frames, as without the plugin
        if not self._attempts.rerunning:
            self._fault = ""
            try:
                self._check.begin(item)
            except PLUGIN_ERRORS as error:
                self.note_fault("BEGIN", item, error)
            if self._meter is not None:
                self._meter.begin()
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Note which fixtures are to stay: a re-run's teardown must leave the same."""
        if not self._attempts.rerunning:
            self._nextitem = nextitem
            if self._attempts.attempt is not None:
                self._attempts.attempt.ends = True
            try:
                self._before_finalizers(finalizers_of_nodes(item, nextitem))
            except PLUGIN_ERRORS as error:
                self.note_fault("BORDER", item, error)

    def _before_finalizers(self, finalizers: Sequence[object]) -> None:
        """Look at what finalizers of wider nodes keep, before they are called: see `before_teardown`."""
        if finalizers:
            self._check.late.explain()
        for one in finalizers:
            self._check.tracker.ownership.note_held(one)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Judge the test once its teardown's report is made, and put the verdict into that report."""
        if call.excinfo is not None:
            from pytest_gpuleak.session.faults import drop_own_frames

            drop_own_frames(call.excinfo.value)
        report = yield
        if self._attempts.rerunning:
            return report
        if call.excinfo is not None and report.failed:
            self._explain_shortage(item, call.excinfo.value, report)
        self._attempts.note_report(report)
        if call.when == "call":
            self._attempts.call_ends(self._check.tracker.frameworks)
        elif call.when == "teardown":
            try:
                self._judge(item, report)
            except KeyboardInterrupt as error:
                # Drop the check's frames from Ctrl-C: a signal may arrive where an instruction has no line, and pytest
                # ends with a TypeError on a frame without a line (Traceback.lineno).
                raise error.with_traceback(None) from None
        return report

    def _judge(self, item: pytest.Item, report: pytest.TestReport) -> None:
        nextitem, self._nextitem = self._nextitem, None
        record = None
        with PausedCollector() as paused:
            if self._meter is not None:
                self._meter.end()
            if not self._fault:  # after a fault, the owner of an array is unknown
                try:
                    record = self._check.judge(item, nextitem, paused.resume)
                except PLUGIN_ERRORS as error:
                    self.note_fault("JUDGE", item, error)
        if self._fault:
            record = self._attempts.give_up(item, self._fault)
        if record is None:
            return
        if record.verdict in QUIET_VERDICTS and not self._sends and os.getpid() == self._attempts.process:
            # The record goes only to the recorder of this process, which takes it off the report.
            setattr(report, RECORD_ATTRIBUTE, record)
        else:
            attach(report, record)
        if self._check.settings.warn:
            return
        note_properties(report, record)
        if record.verdict == "leaked":
            self._fail(item, report)

    def _fail(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Fail the test for its leak once its report is logged, or now if that happens in another process."""
        if os.getpid() != self._attempts.process:
            fail(report)
            return
        if self._fails is None:
            from pytest_gpuleak.session.features.leak_fails import LeakFails

            self._fails = LeakFails()
            self._check.config.pluginmanager.register(self._fails, "gpuleak-fails")
        self._fails.note(item, report)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self) -> bool | None:
        """Set no pytest-timeout timer in a re-run, which has its own limit: its thread method would end the process."""
        return True if self._attempts.rerunning else None

    def _explain_shortage(self, item: pytest.Item, error: BaseException, report: pytest.TestReport) -> None:
        if self._shortages is None:
            from pytest_gpuleak.session.features.out_of_memory import OutOfMemorySection

            check = self._check
            self._shortages = OutOfMemorySection(check.tracker, check.knowledge, check.late.explain)
        self._shortages.add(item, error, report)

    def before_teardown(self, fixturedef: Any, node: Any) -> None:
        """Search for the holders of what waits, which the fixture may own and its teardown would free unexplained."""
        if not self._attempts.rerunning:
            self._check.tracker.before_teardown(fixturedef)
            if may_free(fixturedef, node):
                self._check.late.explain()

    def note_fault(self, stage: str, node: Any, error: BaseException) -> None:
        """Give up the test, which cannot be judged without this step."""
        from pytest_gpuleak.engine import stages  # a run without faults does not load it

        text = self._attempts.faults.note(getattr(stages, stage), error, node.nodeid)
        self._fault = self._fault or f"the check failed: {text}"
