"""Tell of an interpreter that lacks what the plugin is made of."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


class Unchecked:
    """Say that nothing is checked; the tests run as ever."""

    def __init__(self, error: Exception) -> None:
        python = f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}"
        why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        self._text = f"gpu-leak: nothing is checked: {python} is not known ({why})"

    def pytest_report_header(self) -> str:
        """Say so before the tests."""
        return self._text

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say so after them."""
        terminalreporter.write_line(self._text, yellow=True)


def is_unknown() -> bool:
    """Tell whether the plugin was never tried on this interpreter."""
    from pytest_gpuleak.heap.collector_rules import NEWEST

    return sys.implementation.name != "cpython" or sys.version_info[:2] > NEWEST
