"""The plugin's own hooks, for a conftest.py or another plugin to implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.protocol import ArrayFramework, Framework


@pytest.hookspec
def pytest_gpuleak_settle(config: pytest.Config, nodeid: str) -> None:
    """Let go of what is kept on purpose before a suspect test is judged.

    Called after a full collection, while arrays that the test left are still alive, before short waits and before
    the test is run again. Clear the project's own caches here, stop background work, or wait for it.

    Args:
        config: pytest's config.
        nodeid: the test (or, for a fixture, ``baseid::name``) under suspicion.
    """


@pytest.hookspec
def pytest_gpuleak_arrays(config: pytest.Config) -> list[ArrayFramework | Framework]:
    """More array frameworks to watch, beside torch: objects with the methods of ``ArrayFramework``.

    A framework with devices, or with native code that keeps arrays alive, is an object of a class derived from
    ``Framework``. Both are in `pytest_gpuleak.adapters.protocol`.

    Args:
        config: pytest's config.
    """
    raise AssertionError("a specification is never called")
