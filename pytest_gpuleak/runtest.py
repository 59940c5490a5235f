"""The hooks around a test's phases and fixtures. Registered after collection, so that they are the outermost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.findings import Finding, TestRecord, encode
from pytest_gpuleak.keepsakes import warn
from pytest_gpuleak.scopes import is_wider

if TYPE_CHECKING:
    from collections.abc import Generator

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
        self._broken = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """An attempt begins. Not in the protocol: plugins that repeat tests run several attempts in one."""
        if not (self._monitor.rerunning or self._broken):
            try:
                self._monitor.begin(item)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with us, the user's run goes on
                self._break(item, error)
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> None:
        """Note which fixtures are to stay: a re-run's teardown must leave the same."""
        if not self._monitor.rerunning:
            self._nextitem = nextitem

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Generator[None, object, object]:
        """What is born while a wider fixture is set up is the fixture's."""
        if self._broken or not is_wider(fixturedef):
            return (yield)
        with self._monitor.fixture_setup(fixturedef, request):
            return (yield)

    def pytest_fixture_post_finalizer(self, fixturedef: Any) -> None:
        """A fixture has been torn down."""
        if not self._broken and is_wider(fixturedef):
            self._monitor.fixture_finalised(fixturedef)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Judge the test once its teardown's report is made, and put the verdict into that report."""
        report = yield
        if self._monitor.rerunning or self._broken:
            return report
        self._monitor.note_report(report)
        if call.when == "teardown":
            nextitem, self._nextitem = self._nextitem, None
            try:
                record = self._monitor.judge(item, nextitem)
                if record is not None:
                    attach(report, record)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with us, the user's run goes on
                self._break(item, error)
        return report

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self) -> bool | None:
        """No timer of pytest-timeout's in a re-run: its thread method would end the process. It has a limit of ours."""
        return True if self._monitor.rerunning else None

    def _break(self, item: pytest.Item, error: Exception) -> None:
        """Warn once, and leave the rest of the run alone."""
        if not self._broken:
            self._broken = True
            warn(item.config, f"switched off at {item.nodeid}: {type(error).__name__}: {error}", item.nodeid)


def attach(report: pytest.TestReport, record: TestRecord) -> None:
    """Put a test's record, and its verdict, into its teardown's report."""
    setattr(report, RECORD_ATTRIBUTE, encode(record))
    if record.verdict == "leaked":
        report.outcome = "failed"
        report.longrepr = describe_failure(record.findings)


def describe_failure(findings: tuple[Finding, ...]) -> str:
    """What stands in JUnit and wherever else pytest shows a failed report."""
    from pytest_gpuleak.reports.terminal import render_short

    return "GPU LEAK\n" + "\n\n".join(render_short(found) for found in findings if found.failed)
