"""The hooks around a test's phases and fixtures. Registered after collection, so that they are the outermost."""

from __future__ import annotations

import os
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.outcomes import OutcomeException

from pytest_gpuleak.session.fixtures import is_wider
from pytest_gpuleak.session.report_record import RECORD_ATTRIBUTE, attach, fail, note_properties

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpuleak.engine.run_tracker import Monitor
    from pytest_gpuleak.session.features.leak_fails import LeakFails
    from pytest_gpuleak.session.features.out_of_memory.section import OutOfMemorySection
    from pytest_gpuleak.session.peak_hooks import MeterBrackets

FAULTS = (Exception, OutcomeException)
"""Errors of the plugin itself: they change no outcome. A timeout plugin's `Failed` is no Exception."""

TAKEN = ("clean", "noted")
"""Verdicts that nobody asks a report for once it is recorded: they change neither its outcome nor its letter."""


class RuntestHooks:
    """Tells the monitor what happens to the tests.

    Args:
        monitor: watches the process.
        brackets: measure the peaks; None: nobody asks for them.
    """

    def __init__(self, monitor: Monitor, brackets: MeterBrackets | None) -> None:
        self._monitor = monitor
        self._brackets = brackets
        self._shortages: OutOfMemorySection | None = None
        self._nextitem: pytest.Item | None = None
        self._fails: LeakFails | None = None
        self._fault = ""
        self._sends = hasattr(monitor.config, "workerinput")
        self._process = os.getpid()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """An attempt begins. Not in the protocol: plugins that repeat tests run several attempts in one."""
        __tracebackhide__ = True  # a failure's text shows only the user's frames, as without the plugin
        if not self._monitor.rerunning:
            self._fault = ""
            try:
                self._monitor.begin(item)
            except FAULTS as error:
                self._note_fault("BEGIN", item, error)
            if self._brackets is not None:
                self._brackets.begin()
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> None:
        """Note which fixtures are to stay: a re-run's teardown must leave the same."""
        if not self._monitor.rerunning:
            self._nextitem = nextitem

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Generator[None, object, object]:
        """What is born while a wider fixture is set up is the fixture's."""
        __tracebackhide__ = True
        if not is_wider(fixturedef):
            return (yield)
        try:
            self._monitor.enter_fixture_setup(fixturedef, request)
        except FAULTS as error:
            self._note_fault("BORDER", request.node, error)
        if self._brackets is not None:
            self._brackets.enter_setup()
        started = perf_counter()
        failed = True
        try:
            result = yield
            failed = False
            return result
        finally:
            duration_s = perf_counter() - started
            if self._brackets is not None:
                self._brackets.leave_setup(fixturedef)
            try:
                # Finalizers are called last in, first out: this one once all is torn down. Added now, past plugins that
                # list the finalizers of a setup (allure-pytest).
                finalised = partial(self._fixture_finalised, fixturedef, request.node)
                finalizers = getattr(fixturedef, "_finalizers", None)
                if type(finalizers) is list:
                    finalizers.insert(0, finalised)
                else:
                    fixturedef.addfinalizer(finalised)
                self._monitor.leave_fixture_setup(fixturedef, duration_s, failed=failed)
                # From this one on the fixture's own run.
                fixturedef.addfinalizer(partial(self._fixture_teardown, fixturedef, request.node))
            except FAULTS as error:
                self._note_fault("BORDER", request.node, error)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Judge the test once its teardown's report is made, and put the verdict into that report."""
        if call.excinfo is not None:
            from pytest_gpuleak.session.tracebacks import drop_own_frames

            drop_own_frames(call.excinfo.value)
        report = yield
        if self._monitor.rerunning:
            return report
        if call.excinfo is not None and report.failed:
            self._explain_shortage(item, call.excinfo.value, report)
        self._monitor.note_report(report)
        if call.when == "teardown":
            try:
                self._judge(item, report)
            except KeyboardInterrupt as error:
                # Ctrl-C, with the frames of the check taken off: a signal may come where an instruction has no line, and
                # pytest, which shows the traceback, ends with a TypeError on a frame without one (Traceback.lineno).
                raise error.with_traceback(None) from None
        return report

    def _judge(self, item: pytest.Item, report: pytest.TestReport) -> None:
        nextitem, self._nextitem = self._nextitem, None
        if self._brackets is not None:
            self._brackets.end()
        record = None
        if not self._fault:  # else whose an array is cannot be told
            try:
                record = self._monitor.judge(item, nextitem)
            except FAULTS as error:
                self._note_fault("JUDGE", item, error)
        if self._fault:
            record = self._monitor.give_up(item, self._fault)
        if record is None:
            return
        if record.verdict in TAKEN and not self._sends and os.getpid() == self._process:
            # It goes no further than to the recorder of this process, which takes it off the report.
            setattr(report, RECORD_ATTRIBUTE, record)
            note_properties(report, record)
        else:
            attach(report, record)
            if record.verdict == "leaked":
                self._fail(item, report)

    def _fail(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Let the leak fail the test: once its report is logged, or now where that happens in another process."""
        if os.getpid() != self._process:
            fail(report)
            return
        if self._fails is None:
            from pytest_gpuleak.session.features.leak_fails import LeakFails

            self._fails = LeakFails()
            self._monitor.config.pluginmanager.register(self._fails, "gpuleak-fails")
        self._fails.note(item, report)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self) -> bool | None:
        """No timer of pytest-timeout's in a re-run: its thread method would end the process. It has a limit of ours."""
        return True if self._monitor.rerunning else None

    def wider_fixtures(self) -> frozenset[int]:
        """The ids of the wider fixtures that are set up."""
        return self._monitor.scopes.active_ids

    def _fixture_teardown(self, fixturedef: Any, node: Any) -> None:
        try:
            self._monitor.fixture_teardown(fixturedef)
        except FAULTS as error:
            self._note_fault("BORDER", node, error)

    def _fixture_finalised(self, fixturedef: Any, node: Any) -> None:
        if self._brackets is not None:
            self._brackets.finalised(fixturedef)
        try:
            self._monitor.fixture_finalised(fixturedef)
        except FAULTS as error:
            self._note_fault("BORDER", node, error)

    def _explain_shortage(self, item: pytest.Item, error: BaseException, report: pytest.TestReport) -> None:
        if self._shortages is None:
            from pytest_gpuleak.session.features.out_of_memory.section import OutOfMemorySection

            self._shortages = OutOfMemorySection(self._monitor)
        self._shortages.add(item, error, report)

    def _note_fault(self, stage: str, node: Any, error: BaseException) -> None:
        """Give the test up: the plugin has failed where nothing can be said without it.

        Args:
            stage: the name of the stage in `engine.stages`.
            node: the test, or the node that a fixture is set up for.
            error: what was raised.
        """
        from pytest_gpuleak.engine import stages  # a run without faults does not load it

        text = self._monitor.faults.note(getattr(stages, stage), error, node.nodeid)
        self._fault = self._fault or f"the check failed: {text}"
