"""Strongly connected components, against what each node reaches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuleak.explain.reference_graph import components
from pytest_gpuleak.heap.budget import Budget

NODES = st.integers(0, 8)
EDGES = st.lists(st.tuples(NODES, NODES), max_size=24)


def _reached(start: int, edges: list[tuple[int, int]]) -> set[int]:
    found = {start}
    while True:
        more = {child for parent, child in edges if parent in found} - found
        if not more:
            return found
        found |= more


@given(EDGES, st.lists(NODES, max_size=3))
def test_nodes_share_a_component_where_each_leads_to_the_other(edges: list[tuple[int, int]], starts: list[int]) -> None:
    children = {node: [child for parent, child in edges if parent == node] for node in range(9)}
    found = components(starts, children.__getitem__, Budget(10**9))
    assert found is not None
    below = {node: _reached(node, edges) for node in range(9)}
    assert set(found) == {node for start in starts for node in below[start]}
    for one in found:
        for other in found:
            assert (found[one] == found[other]) == (one in below[other] and other in below[one])


def test_a_long_chain_needs_no_recursion() -> None:
    last = 100_000
    found = components([0], lambda node: [node + 1] if node < last else [0], Budget(10**9))
    assert found is not None
    assert len(set(found.values())) == 1


def test_without_a_budget_nothing_is_told() -> None:
    assert components([0], lambda node: [node + 1], Budget(0)) is None
