"""What a test is parametrized with, and what lies below it."""

from __future__ import annotations

import types
from typing import Any

import pytest

from pytest_gpuleak.explain.parameters import MAX_WALKED, containers_below, parameters_of

pytestmark = pytest.mark.interpreter


class Node:
    def __init__(self, **attributes: object) -> None:
        vars(self).update(attributes)


def item(params: Any) -> Node:
    return Node(callspec=Node(params=params))


def test_parameters_that_may_keep_an_array() -> None:
    kept, module = Node(), types.ModuleType("made")
    params = {"module": kept, "number": 3, "text": "x", "class": Node, "function": item, "package": module}
    assert parameters_of(item(params)) == {"module": kept}


@pytest.mark.parametrize(
    "odd", [Node(), Node(callspec=None), Node(callspec=Node()), item(None), item([Node()]), object(), None]
)
def test_items_without_parameters(odd: object) -> None:
    assert parameters_of(odd) == {}


def test_all_that_lies_below() -> None:
    empty: dict[str, object] = {}
    inner: dict[str, object] = {"empty": empty}
    parameter = Node(inner=inner, pair=([1], 2), kind=Node)
    below = containers_below([parameter])
    assert below is not None
    found = set(map(id, below))
    assert {id(parameter), id(inner), id(empty), id(vars(parameter)["pair"][0])} <= found
    assert id(Node) not in found


def test_rings_are_walked_once() -> None:
    ring: list[object] = []
    ring.append(ring)
    assert containers_below([ring]) == [ring]


def test_too_many() -> None:
    assert containers_below([[[] for _ in range(MAX_WALKED + 1)]]) is None
