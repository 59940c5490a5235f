"""NumPy's objects that hold arrays unseen by the collector."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

np: Any = pytest.importorskip("numpy")

from pytest_gpuleak.heap.library_types import ArrayWrappers  # noqa: E402

ROWS = np.zeros(3, dtype=[("a", "f8")])


@pytest.mark.parametrize(
    ("make", "edges"),
    [
        (lambda array: array.flat, [".base"]),
        (lambda array: np.nditer([array, None]), [".operands[0]", ".operands[1]"]),
        (lambda array: array[0], [".base"]),
        (lambda array: array.view(np.recarray)[0], [".base"]),
        (lambda array: array["a"][0], []),
        (lambda array: array["a"].__array_interface__, []),
        (lambda array: array, []),
    ],
    ids=["flat", "nditer", "row", "record", "number", "interface", "array"],
)
def test_what_is_inside_is_told_with_the_way_to_it(make: Any, edges: list[str]) -> None:
    assert [edge for edge, _ in ArrayWrappers().inside(make(ROWS if len(edges) < 2 else np.ones(3)))] == edges


def test_a_broadcast_holds_iterators_that_hold_its_arrays() -> None:
    array, wrappers = np.ones(3), ArrayWrappers()
    parts = wrappers.inside(np.broadcast(array, 1))
    assert [edge for edge, _ in parts] == [".iters[0]", ".iters[1]"]
    ((_, found),) = wrappers.inside(parts[0][1])
    assert found is array


def test_a_closed_iterator_holds_nothing() -> None:
    closed = np.nditer(np.ones(3))
    closed.close()
    assert ArrayWrappers().inside(closed) == []


def test_a_subclass_runs_no_code() -> None:
    class Row(np.void):  # type: ignore[misc] # numpy is imported where it is there
        @property
        def base(self) -> object:
            raise AssertionError("code of the user's has run")

    array = np.zeros(3, dtype=np.dtype((Row, ROWS.dtype)))
    row = array[0]
    assert type(row) is Row
    wrappers = ArrayWrappers()
    assert wrappers.is_wrapper_type(Row)
    ((edge, found),) = wrappers.inside(row)
    assert (edge, found is array) == (".base", True)


@pytest.mark.parametrize("stand_in", [ModuleType("numpy"), MagicMock(), None], ids=["half imported", "mock", "removed"])
def test_another_module_in_numpys_place_is_not_asked(monkeypatch: pytest.MonkeyPatch, stand_in: Any) -> None:
    monkeypatch.setitem(sys.modules, "numpy", stand_in)
    wrappers = ArrayWrappers()
    assert wrappers.inside(MagicMock()) == []
    found = wrappers.inside(np.ones(3).flat)  # its class is known wherever numpy has gone
    assert [edge for edge, _ in found] == [".base"]
    if isinstance(stand_in, MagicMock):
        assert stand_in.mock_calls == []
