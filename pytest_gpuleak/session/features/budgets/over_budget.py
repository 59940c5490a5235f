"""Mark the report of a test that was found over its budget after its teardown, and show it as a failed test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

OVER_BUDGET_ATTRIBUTE = "gpu_leak_over_budget"
"""The attribute of such a teardown's report; xdist sends it along."""


class ShowsExcess:
    """Counts such a test as failed: pytest would call it an error of its teardown."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, str | tuple[str, Mapping[str, bool]]] | None:
        """Return the words for it."""
        return ("failed", "F", "FAILED") if getattr(report, OVER_BUDGET_ATTRIBUTE, False) else None
