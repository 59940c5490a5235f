"""Take what xdist's workers could not check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.session.xdist_keys import UNCHECKED_BUDGETS_KEY, USAGE_ERROR_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping


class WorkerHooks:
    """Read what the workers send when they end. Registered where tests are distributed."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take the budgets that a worker could not check. Raises pytest.UsageError for a bad marker that it found."""
        output: Mapping[str, Any] = getattr(node, "workeroutput", None) or {}
        if USAGE_ERROR_KEY in output:
            raise pytest.UsageError(output[USAGE_ERROR_KEY])
        if output.get(UNCHECKED_BUDGETS_KEY):
            from pytest_gpuleak.session.features.budgets.hooks import add_worker

            add_worker(self._config, output[UNCHECKED_BUDGETS_KEY])
