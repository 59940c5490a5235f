"""Searches that have the time of a loaded machine, and a heap without what the tests have loaded."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain.explain import explain

if TYPE_CHECKING:
    from collections.abc import Iterator

AMPLE_S = 60.0
"""Seconds. With the default 5 s a search beside a busy worker's other tests ends as "unknown (ran out of time)"."""


@pytest.fixture(autouse=True)
def ample_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a search that states no budget enough time to end; tests of the budget state one."""
    defaults: Any = explain.__kwdefaults__
    monkeypatch.setitem(defaults, "budget_s", AMPLE_S)


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Hide all that is alive: a search walks over the heap once a level, and that of all tests has millions of objects."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
