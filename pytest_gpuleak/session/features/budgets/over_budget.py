"""What budgets tell by pytest's means: a test that was found over one after its teardown, and those that were not checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.session.config.markers import USAGE_ERROR_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

UNCHECKED_BUDGETS_KEY = "gpu_leak_unchecked_budgets"
"""Key of the reasons why an xdist worker could not check budgets, in its ``workeroutput``: one per budget."""

OVER_BUDGET_ATTRIBUTE = "gpu_leak_over_budget"
"""The attribute of a teardown's report that fails for a budget; xdist sends it along."""


def fail_after_teardown(report: pytest.TestReport, text: str) -> None:
    """Fail a test by its teardown's report. Where that has failed already, for a leak, the text is added to it."""
    if report.failed:
        report.longrepr = f"{report.longrepr}\n\n{text}"
        return
    report.outcome, report.longrepr = "failed", text
    setattr(report, OVER_BUDGET_ATTRIBUTE, True)


class ShowsExcess:
    """Counts such a test as failed: pytest would call it an error of its teardown."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, str | tuple[str, Mapping[str, bool]]] | None:
        """Return the words for it."""
        return ("failed", "F", "FAILED") if getattr(report, OVER_BUDGET_ATTRIBUTE, False) else None


class TellsUnchecked:
    """Tells at the end which budgets were not checked."""

    def __init__(self) -> None:
        self._unchecked: dict[str, str] = {}  # by nodeid: of several attempts of a test the last counts; else by number

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send the controller what this worker could not check."""
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[UNCHECKED_BUDGETS_KEY] = [*output.get(UNCHECKED_BUDGETS_KEY, ()), *self._unchecked.values()]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write a line if budgets could not be checked."""
        if self._unchecked:
            from pytest_gpuleak.session.features.budgets.budget import describe_unchecked

            terminalreporter.line(describe_unchecked(self._unchecked.values()))


class WorkerHooks(TellsUnchecked, ShowsExcess):
    """Read what the workers send when they end. Registered where tests are distributed."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take what a worker sends. Raises pytest.UsageError for a bad marker that it found."""
        output: Mapping[str, Any] = getattr(node, "workeroutput", None) or {}
        if USAGE_ERROR_KEY in output:
            raise pytest.UsageError(output[USAGE_ERROR_KEY])
        reasons = enumerate(output.get(UNCHECKED_BUDGETS_KEY, ()), len(self._unchecked))
        self._unchecked.update((str(number), why) for number, why in reasons)
