"""The section on who holds the memory, in the report of a test that ran out of it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.keepsakes import warn
from pytest_gpuleak.memory import HOST

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpuleak.monitor import Monitor


class OutOfMemoryHooks:
    """Tells in a failing test's report who holds the memory that has run out.

    Args:
        monitor: finds the live arrays, reads the counters, and knows what tests and fixtures hold.
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._warned = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the section. Nothing is allocated on a device, and no traceback outlives the call for it."""
        report = yield
        if report.failed and call.excinfo is not None and not self._monitor.rerunning:
            from pytest_gpuleak.out_of_memory import HOST_SECTION, SECTION, explain_out_of_memory, find_shortage
            from pytest_gpuleak.shortage_facts import read_facts

            try:
                shortage = find_shortage(call.excinfo.value)
                if shortage is not None:
                    lines = explain_out_of_memory(read_facts(self._monitor, shortage))
                    title = HOST_SECTION if shortage.device == HOST else SECTION
                    report.sections.append((title, "\n".join(lines)))
            except Exception as error:  # noqa: BLE001 - there may be no memory left to say it with
                self._warn(item, type(error).__name__)
        return report

    def _warn(self, item: pytest.Item, what: str) -> None:
        if not self._warned:
            self._warned = True
            with suppress(Exception):
                warn(item.config, f"who holds the memory could not be told: {what}", item.nodeid)
