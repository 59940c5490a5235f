"""Define the plugin's own hooks, for a conftest.py or another plugin to implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.protocol import ArrayFramework, Framework


@pytest.hookspec
def pytest_gpuleak_settle(config: pytest.Config, nodeid: str) -> None:
    """Release what is kept on purpose before a suspect test is judged.

    Called after a full collection, while arrays that the test left are still alive, before short waits and re-runs.
    Clear the project's own caches here, stop background work, or wait for it.

    Args:
        config: pytest's config.
        nodeid: the test (or, for a fixture, ``baseid::name``) under suspicion.
    """


@pytest.hookspec
def pytest_gpuleak_arrays(config: pytest.Config) -> list[ArrayFramework | Framework]:
    """Return more array frameworks to watch, beside torch: objects with the methods of ``ArrayFramework``.

    A framework with devices, or with native code that keeps arrays alive, derives from ``Framework``. Both are in
    `pytest_gpuleak.adapters.protocol`.
    """
    raise AssertionError("a specification is never called")


del TYPE_CHECKING, annotations  # pluggy looks at each name of this module, at the start of every run
