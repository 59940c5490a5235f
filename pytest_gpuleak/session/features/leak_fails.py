"""When a leak fails its test: as the report of the teardown is logged, and once a test.

Not as soon as the report is made. Plugins that repeat failed tests (pytest-rerunfailures, flaky) look at it in between:
they would repeat a leak that a re-run has confirmed, and a cache that was filled once would be clean the second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.session.report_record import AGAIN_ATTRIBUTE, fail

if TYPE_CHECKING:
    from collections.abc import Generator


class LeakFails:
    """Fails the tests that leaked. Registered with the first one, after every other plugin: called outermost."""

    def __init__(self) -> None:
        self._waiting: pytest.TestReport | None = None
        self._item = 0

    def note(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """A test has leaked: its report is to fail when it is logged.

        One that leaked in the attempt before, as flaky's `min_passes` brings about, has been counted. pytest keeps its
        tests until the session ends, so that an id is a test's for good.
        """
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
