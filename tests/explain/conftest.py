"""A heap without what the tests have loaded."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def small_heap(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hide all that is alive: a search walks over the heap once a level, and that of all tests has millions of objects.

    Not before a run within the test, which would take it for a heap that the user has frozen.
    """
    gc.collect()
    if "pytester" not in request.fixturenames:
        gc.freeze()
    yield
    gc.unfreeze()
