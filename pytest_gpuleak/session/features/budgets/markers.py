"""Search the collected tests for budgets, and load the hooks only if there are any."""

from __future__ import annotations

import pytest

from pytest_gpuleak.session.config.given_values import read_value
from pytest_gpuleak.session.config.options import BUDGET_MARKER
from pytest_gpuleak.session.xdist_keys import UNCHECKED_BUDGETS_KEY, USAGE_ERROR_KEY


class BudgetMarkers:
    """Load budgets on demand. Raises pytest.UsageError for a bad `--gpu-leak-max-mb`."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._default: int | None = read_value(config, "max_mb")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Raise pytest.UsageError for a marker that is not accepted, before any test runs."""
        if self._default is not None or _any_has_budget(items):
            from pytest_gpuleak.session.features.budgets.hooks import hold_to_budgets

            hold_to_budgets(self._config, items, self._default)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take what an xdist worker could not check. Raises pytest.UsageError for a bad marker that it found."""
        output = getattr(node, "workeroutput", None) or {}
        if USAGE_ERROR_KEY in output:
            raise pytest.UsageError(output[USAGE_ERROR_KEY])
        if output.get(UNCHECKED_BUDGETS_KEY):
            from pytest_gpuleak.session.features.budgets.hooks import add_worker

            add_worker(self._config, output[UNCHECKED_BUDGETS_KEY])


def _any_has_budget(items: list[pytest.Item]) -> bool:
    """Tell whether a test, its class or module has the marker; each node is checked once."""
    seen: set[int] = set()
    for item in items:
        node: pytest.Item | pytest.Collector | None = item
        while node is not None and id(node) not in seen:
            seen.add(id(node))
            if any(mark.name == BUDGET_MARKER for mark in node.own_markers):
                return True
            node = node.parent
    return False
