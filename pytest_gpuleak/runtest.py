"""The hooks around a test's phases and fixtures. Registered after collection, so that they are the outermost."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.outcomes import OutcomeException

from pytest_gpuleak.findings import Finding, TestRecord, encode
from pytest_gpuleak.keepsakes import warn
from pytest_gpuleak.scopes import is_wider

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pytest_gpuleak.monitor import Monitor

RECORD_ATTRIBUTE = "gpu_leak"
"""The attribute of a teardown's report that carries the test's record; xdist sends it along."""


class RuntestHooks:
    """Tells the monitor what happens to the tests.

    Args:
        monitor: watches the process.
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._nextitem: pytest.Item | None = None
        self._fault = ""
        self._warned = False

    @property
    def rerunning(self) -> bool:
        """Whether a test is being run again, to confirm a leak."""
        return self._monitor.rerunning

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """An attempt begins. Not in the protocol: plugins that repeat tests run several attempts in one."""
        if not self._monitor.rerunning:
            self._fault = ""
            with self._guarded(item):
                self._monitor.begin(item)
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
        with self._guarded(request.node):
            self._monitor.enter_fixture_setup(fixturedef, request)
        started = perf_counter()
        try:
            return (yield)
        finally:
            with self._guarded(request.node):
                self._monitor.leave_fixture_setup(fixturedef, perf_counter() - started)
                # Finalizers are called last in, first out: from this one on the fixture's own run.
                fixturedef.addfinalizer(partial(self._fixture_teardown, fixturedef, request.node))

    def pytest_fixture_post_finalizer(self, fixturedef: Any, request: Any) -> None:
        """A fixture has been torn down."""
        if is_wider(fixturedef):
            with self._guarded(request.node):
                self._monitor.fixture_finalised(fixturedef)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Judge the test once its teardown's report is made, and put the verdict into that report."""
        report = yield
        if self._monitor.rerunning:
            return report
        self._monitor.note_report(report)
        if call.when == "teardown":
            nextitem, self._nextitem = self._nextitem, None
            record = None
            with self._guarded(item):
                record = self._monitor.judge(item, nextitem)
            if self._fault:
                record = self._monitor.give_up(item, self._fault)
            if record is not None:
                attach(report, record)
        return report

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self) -> bool | None:
        """No timer of pytest-timeout's in a re-run: its thread method would end the process. It has a limit of ours."""
        return True if self._monitor.rerunning else None

    def _fixture_teardown(self, fixturedef: Any, node: Any) -> None:
        with self._guarded(node):
            self._monitor.fixture_teardown(fixturedef)

    @contextmanager
    def _guarded(self, node: Any) -> Iterator[None]:
        """Whatever is wrong with us costs the test its verdict and the run one warning, and no outcome."""
        try:
            yield
        except (Exception, OutcomeException) as error:  # noqa: BLE001 - a timeout plugin's `Failed` is no Exception
            self._fault = f"the plugin failed: {type(error).__name__}: {error}"
            if not self._warned:
                self._warned = True
                warn(node.config, f"{node.nodeid} could not be checked: {type(error).__name__}: {error}", node.nodeid)


def attach(report: pytest.TestReport, record: TestRecord) -> None:
    """Put a test's record, and its verdict, into its teardown's report."""
    setattr(report, RECORD_ATTRIBUTE, encode(record))
    if record.findings:
        from pytest_gpuleak.reports.junit import properties_of

        report.user_properties += properties_of(record)
    if record.verdict == "leaked":
        report.outcome = "failed"
        report.longrepr = describe_failure(record.findings)


def describe_failure(findings: tuple[Finding, ...]) -> str:
    """What stands in JUnit and wherever else pytest shows a failed report."""
    from pytest_gpuleak.reports.terminal import render_short

    return "GPU LEAK\n" + "\n\n".join(render_short(found) for found in findings if found.failed)
