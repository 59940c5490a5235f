"""What counting references adds on this interpreter, and counts that are none."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.explain import harness, unaccounted
from pytest_gpuleak.explain.harness import held_by_harness
from pytest_gpuleak.explain.reference_graph import Graph
from pytest_gpuleak.heap import interpreter
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.interpreter import ARGUMENT_REFERENCES, LENDS_ARGUMENTS, UNCOUNTED

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.interpreter


class Plain:
    """Something that can be referred to."""


class Item:
    """Stands for pytest's item."""


def count(value: object) -> int:
    return sys.getrefcount(value)


def test_what_an_argument_and_a_parameter_add() -> None:
    kept = [Plain()]
    value = kept[0]
    assert sys.getrefcount(value) == 2 + ARGUMENT_REFERENCES
    assert (count(value) == sys.getrefcount(value)) is LENDS_ARGUMENTS
    assert (sys.version_info >= (3, 14)) is LENDS_ARGUMENTS


def find(arrays: list[object]) -> str | None:
    held = held_by_harness(arrays, Item(), None, ())
    return held.by if held is not None and held.arrays else None


def pass_on(array: object, search: Callable[[list[object]], str | None]) -> str | None:
    return search([array])


def test_a_reference_beside_those_of_frames_is_never_missed() -> None:
    """Parameters that share the reference of the caller's variable must not hide one that is nowhere to be seen."""
    array = Plain()
    # Python 3.10 keeps an argument on the caller's stack too, where nothing shows it: not known, so searched for.
    assert pass_on(array, find) == ("frames" if sys.version_info >= (3, 11) else None)
    assert find([array]) == "frames"
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))
    try:
        assert pass_on(array, find) is None
    finally:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(array))


def test_what_too_many_objects_hold_is_looked_at_once_for_all_arrays_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a whole heap each level is a walk over it: a holder of 16 arrays cost its test 15 seconds."""
    walks: list[int] = []

    def count_walks(*objects: object) -> list[object]:
        walks.append(len(objects))
        # On Python 3.14 this call's own arguments are among them.
        return [one for one in gc.get_referrers(*objects) if one is not objects]

    monkeypatch.setattr(harness, "get_referrers", count_walks)
    first, second, apart = Plain(), Plain(), Plain()
    holder = [first, second]
    crowd = [[holder] for _ in range(harness.MAX_OF_HEAP + 1)]
    too_much: set[int] = set()
    assert held_by_harness([first], Item(), None, (), too_much) is None
    assert id(holder) in too_much
    walks.clear()
    assert held_by_harness([second], Item(), None, (), too_much) is None
    assert held_by_harness([first, second], Item(), None, (), too_much) is None
    assert walks == [1]
    held = held_by_harness([apart], Item(), None, (), too_much)
    assert held is not None
    assert held.by == "frames"
    assert held.arrays == {id(apart)}
    assert len(crowd) > harness.MAX_OF_HEAP


class NativeOwner:
    """A framework whose native code owns each array. It counts how often the heap is listed for its references."""

    censuses = 0

    def owner_counter(self) -> Callable[[object], int]:
        return lambda array: 1

    def take_census(self, budget: Budget) -> None:
        self.censuses += 1


def test_what_no_frame_leads_to_needs_no_census_of_native_references() -> None:
    """A census lists the heap: for each constant of TorchScript's, which C++ holds, it took a third of the search."""
    framework = NativeOwner()
    array = Plain()
    arrays: list[object] = [array]
    held_by_harness(arrays, Item(), None, (framework,))  # type: ignore[arg-type]
    assert framework.censuses == 1
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))
    try:
        del array
        held = held_by_harness(arrays, Item(), None, (framework,))  # type: ignore[arg-type]
        assert held is not None
        assert held.arrays == frozenset()
        assert framework.censuses == 1
    finally:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(arrays[0]))


@pytest.mark.parametrize("uncounted", [UNCOUNTED, 3221225472, 4294967295, sys.maxsize // 8 + 5])
def test_a_count_that_is_none_hides_nothing(uncounted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Immortal objects, and those that a free-threaded build counts late."""
    monkeypatch.setattr(unaccounted, "getrefcount", lambda value: uncounted)
    value = Plain()
    hidden = hidden_of(value)
    assert (hidden.by_native, hidden.by_reference) == ({}, {})
    assert hidden.unheld == {id(value)}


def hidden_of(value: object) -> unaccounted.Hidden:
    graph = Graph()
    graph.add(value)
    return unaccounted.Hidden(graph, [id(value)], {}, Budget(10**9)).find({}, lambda value: None)


def test_a_reference_too_many_is_seen() -> None:
    graph = Graph()
    value = Plain()
    graph.add(value)
    identity = id(value)

    def examine() -> unaccounted.Hidden:
        return unaccounted.Hidden(graph, [identity], {}, Budget(10**9)).find({}, lambda value: None)

    assert list(examine().by_reference) == [identity]  # this function's variable
    del value
    assert examine().by_reference == {}


def test_an_interpreter_that_counts_nothing() -> None:
    assert interpreter._uncounted(Plain()) == UNCOUNTED
