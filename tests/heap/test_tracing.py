"""Interpreters that cannot trace allocations, or raise an exception in another thread."""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.heap import async_exceptions, tracing

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


def test_nothing_is_raised_where_the_interpreter_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ctypes, "pythonapi")
    async_exceptions.raise_in(threading.get_ident(), KeyboardInterrupt)
    async_exceptions.take_back()
