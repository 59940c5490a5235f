"""A heap without what the tests have loaded."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Hide all that is alive: a search walks over the heap once a level, and that of all tests has millions of objects."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
