"""Interpreters that cannot trace allocations."""

from __future__ import annotations

import importlib
import sys
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.heap import tracing

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def without_tracemalloc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "_tracemalloc", None)
        importlib.reload(tracing)
        yield
    importlib.reload(tracing)


@pytest.mark.usefixtures("without_tracemalloc")
def test_nothing_is_traced_without_tracemalloc() -> None:
    assert not tracing.CAN_TRACE
    assert not tracing.is_tracing()


def test_tracing_is_seen() -> None:
    if tracemalloc.is_tracing():
        pytest.skip("the tests are traced")
    assert tracing.CAN_TRACE
    tracemalloc.start()
    try:
        assert tracing.is_tracing()
    finally:
        tracemalloc.stop()
    assert not tracing.is_tracing()
