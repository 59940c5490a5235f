"""Take from xdist's workers which markers they did not accept, and which budgets they could not check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.session.features.budgets.over_budget import ShowsExcess
from pytest_gpuleak.session.xdist_keys import UNCHECKED_BUDGETS_KEY, USAGE_ERROR_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping


class WorkerHooks(ShowsExcess):
    """Read what the workers send when they end. Registered where tests are distributed."""

    def __init__(self) -> None:
        self._unchecked: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take what a worker sends. Raises pytest.UsageError for a bad marker that it found."""
        output: Mapping[str, Any] = getattr(node, "workeroutput", None) or {}
        if USAGE_ERROR_KEY in output:
            raise pytest.UsageError(output[USAGE_ERROR_KEY])
        self._unchecked += output.get(UNCHECKED_BUDGETS_KEY, ())

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write a line if budgets could not be checked."""
        if self._unchecked:
            from pytest_gpuleak.session.features.budgets.budget import describe_unchecked

            terminalreporter.line(describe_unchecked(self._unchecked))
