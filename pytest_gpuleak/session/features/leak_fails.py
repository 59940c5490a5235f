"""Fail a leaking test once, when its teardown's report is logged: plugins repeat what fails before, and hide it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.session.report_record import AGAIN_ATTRIBUTE, fail

if TYPE_CHECKING:
    from collections.abc import Generator


class LeakFails:
    """Fails the tests that leaked. Registered with the first leak, after every other plugin: called outermost."""

    def __init__(self) -> None:
        self._waiting: pytest.TestReport | None = None
        self._item = 0

    def note(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Fail a test's report when it is logged; mark it if an earlier attempt (flaky's `min_passes`) was counted."""
        # pytest keeps its tests until the session ends, so an id always means the same test.
        if id(item) == self._item:
            setattr(report, AGAIN_ATTRIBUTE, True)
            return
        self._item, self._waiting = id(item), report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Fail the report before the session or a reporter counts it."""
        if report is self._waiting:
            self._waiting = None
            fail(report)
        return (yield)
