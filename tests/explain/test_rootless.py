"""Targets without a root."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain.native_references import NativeReferences
from pytest_gpuleak.explain.paths import Writer
from pytest_gpuleak.explain.reference_graph import Graph
from pytest_gpuleak.explain.rootless import TIMEOUT_ROOT, Rootless
from pytest_gpuleak.explain.roots.roots import Roots
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.hidden_references import RING_ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping


class Rings:
    """Native code that closes rings, and holds nothing else."""

    hidden: frozenset[int] = frozenset()

    def __init__(self, rings: Mapping[int, list[int]]) -> None:
        self._rings = rings

    def short_rings(self, limit: int, budget: Budget) -> Mapping[int, list[int]]:
        return self._rings

    def root_of(self, value: object) -> str:
        return ""


@pytest.mark.parametrize(("ringed", "root"), [(True, RING_ROOT), (False, TIMEOUT_ROOT)])
def test_a_ring_is_named_though_the_time_was_up(ringed: bool, root: str) -> None:
    """It keeps the target, whoever else does; one of botorch's tests was told the time alone."""
    target: dict[str, Any] = {}
    owner = {"target": target}
    graph = Graph()
    for value in (owner, target):
        graph.add(value)
    graph.connect(id(owner), id(target))
    native: Any = Rings({id(owner): [id(owner)]} if ringed else {})
    rootless = Rootless(graph, native, Writer({}), Budget(10**9), exhausted=False, exact=True)
    holder = rootless.holders([id(target)])[id(target)]
    assert holder.root == root
    if ringed:
        assert holder.text.endswith("['target']")


def test_rings_are_looked_for_again_where_the_budget_allows() -> None:
    graph = Graph()
    first: list[object] = []
    second = [first]
    for value in (first, second):
        graph.add(value)
    graph.connect(id(second), id(first))
    graph.connect(id(first), id(second))
    spent, fresh = Budget(0), Budget(10**9)
    while not spent.worked(1000):
        pass
    native = NativeReferences(graph, Roots(set()), [], spent, set(), (), ())
    elsewhere = [(-1 - number, -1000) for number in range(100)]
    native.links = dict.fromkeys([*elsewhere, (id(second), id(first))])
    assert native.short_rings(9, spent) == {}
    assert native.short_rings(9, fresh).keys() == {id(first), id(second)}
    assert native.short_rings(9, spent).keys() == {id(first), id(second)}, "they are known by now"
