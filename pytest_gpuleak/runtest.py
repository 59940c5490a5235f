"""The hooks around a test's phases and fixtures. Registered after collection, so that they are the outermost."""

from __future__ import annotations

import os
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.outcomes import OutcomeException

from pytest_gpuleak.attempts import encode_test
from pytest_gpuleak.hooks import Hooks
from pytest_gpuleak.keepsakes import warn
from pytest_gpuleak.scopes import is_wider

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpuleak.attempts import TestRecord
    from pytest_gpuleak.findings import Finding
    from pytest_gpuleak.monitor import Monitor
    from pytest_gpuleak.out_of_memory_section import OutOfMemorySection
    from pytest_gpuleak.probes.sharing import MeterBrackets

FAULTS = (Exception, OutcomeException)
"""Whatever is wrong with us costs the test its verdict and the run one warning, and no outcome. A timeout plugin's
`Failed` is no Exception."""

TAKEN = ("clean", "noted")
"""Verdicts that nobody asks a report for once it is recorded: they change neither its outcome nor its letter."""

RECORD_ATTRIBUTE = "gpu_leak"
"""The attribute of a teardown's report that carries the test's record; xdist sends it along."""


class RuntestHooks(Hooks):
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
        self._fault = ""
        self._warned = False
        self._sends = hasattr(monitor.config, "workerinput")
        self._process = os.getpid()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """An attempt begins. Not in the protocol: plugins that repeat tests run several attempts in one."""
        if not self._monitor.rerunning:
            self._fault = ""
            try:
                self._monitor.begin(item)
            except FAULTS as error:
                self._note_fault(item, error)
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
        if not is_wider(fixturedef):
            return (yield)
        try:
            self._monitor.enter_fixture_setup(fixturedef, request)
            # Finalizers are called last in, first out: this one once all is torn down.
            fixturedef.addfinalizer(partial(self._fixture_finalised, fixturedef, request.node))
        except FAULTS as error:
            self._note_fault(request.node, error)
        if self._brackets is not None:
            self._brackets.enter_setup()
        started = perf_counter()
        try:
            return (yield)
        finally:
            duration_s = perf_counter() - started
            if self._brackets is not None:
                self._brackets.leave_setup(fixturedef)
            try:
                self._monitor.leave_fixture_setup(fixturedef, duration_s)
                # From this one on the fixture's own run.
                fixturedef.addfinalizer(partial(self._fixture_teardown, fixturedef, request.node))
            except FAULTS as error:
                self._note_fault(request.node, error)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Judge the test once its teardown's report is made, and put the verdict into that report."""
        report = yield
        if self._monitor.rerunning:
            return report
        if call.excinfo is not None and report.failed:
            self._explain_shortage(item, call.excinfo.value, report)
        self._monitor.note_report(report)
        if call.when == "teardown":
            self._judge(item, report)
        return report

    def _judge(self, item: pytest.Item, report: pytest.TestReport) -> None:
        nextitem, self._nextitem = self._nextitem, None
        if self._brackets is not None:
            self._brackets.end()
        record = None
        try:
            record = self._monitor.judge(item, nextitem)
        except FAULTS as error:
            self._note_fault(item, error)
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

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self) -> bool | None:
        """No timer of pytest-timeout's in a re-run: its thread method would end the process. It has a limit of ours."""
        return True if self._monitor.rerunning else None

    def _fixture_teardown(self, fixturedef: Any, node: Any) -> None:
        try:
            self._monitor.fixture_teardown(fixturedef)
        except FAULTS as error:
            self._note_fault(node, error)

    def _fixture_finalised(self, fixturedef: Any, node: Any) -> None:
        if self._brackets is not None:
            self._brackets.finalised(fixturedef)
        try:
            self._monitor.fixture_finalised(fixturedef)
        except FAULTS as error:
            self._note_fault(node, error)

    def _explain_shortage(self, item: pytest.Item, error: BaseException, report: pytest.TestReport) -> None:
        if self._shortages is None:
            from pytest_gpuleak.out_of_memory_section import OutOfMemorySection

            self._shortages = OutOfMemorySection(self._monitor)
        self._shortages.add(item, error, report)

    def _note_fault(self, node: Any, error: BaseException) -> None:
        """The plugin has failed on a test: it is given up, and the first such fault is told."""
        self._fault = f"the plugin failed: {type(error).__name__}: {error}"
        if not self._warned:
            self._warned = True
            warn(node.config, f"{node.nodeid} could not be checked: {type(error).__name__}: {error}", node.nodeid)


def attach(report: pytest.TestReport, record: TestRecord) -> None:
    """Put a test's record, as plain data, and its verdict into its teardown's report."""
    setattr(report, RECORD_ATTRIBUTE, encode_test(record))
    note_properties(report, record)
    if record.verdict == "leaked":
        report.outcome = "failed"
        report.longrepr = describe_failure(record.findings)


def note_properties(report: pytest.TestReport, record: TestRecord) -> None:
    """Say in JUnit what was found."""
    if record.findings:
        from pytest_gpuleak.reports.junit import properties_of

        report.user_properties += properties_of(record)


def describe_failure(findings: tuple[Finding, ...]) -> str:
    """What stands in JUnit and wherever else pytest shows a failed report."""
    from pytest_gpuleak.reports.terminal import render_short

    return "GPU LEAK\n" + "\n\n".join(render_short(found) for found in findings if found.failed)
