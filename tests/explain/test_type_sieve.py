"""Objects are picked by type, each type is asked for once, and no class of the user runs code."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuleak.heap.type_sieve import TypeSieve

pytestmark = pytest.mark.interpreter


class Hostile(type):
    def __hash__(cls) -> int:
        raise AssertionError("a class was hashed")

    def __eq__(cls, other: object) -> bool:
        raise AssertionError("a class was compared")


class Value(metaclass=Hostile):
    pass


def test_objects_are_picked_by_type_in_their_order() -> None:
    sieve = TypeSieve(lambda kind: kind is int or kind is str)
    assert sieve.pick([1, 2.0, "a", None, True]) == [1, "a"]
    assert sieve.marks([None, 2]) == [False, True]
    assert sieve.pick([]) == []


def test_each_type_is_asked_for_once() -> None:
    asked: list[Any] = []

    def belongs(kind: type) -> bool:
        asked.append(kind)
        return False

    sieve = TypeSieve(belongs)
    sieve.pick([1, 2, "a"])
    sieve.pick([3, "b", 1.0])
    assert sorted(kind.__name__ for kind in asked) == ["float", "int", "str"]


def test_classes_are_neither_hashed_nor_compared() -> None:
    value = Value()
    assert TypeSieve(lambda kind: kind is not int).pick([1, value]) == [value]
