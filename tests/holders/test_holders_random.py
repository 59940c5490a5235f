"""Random object graphs with a planted path: the text evaluates to the target, and no path is shorter."""

from __future__ import annotations

import gc
import sys
import types
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuleak.holders.search import explain

KINDS = ("list", "dict", "object")


class Node:
    """An object with attributes; some nodes are targets."""


def make(kind: str) -> Any:
    return {"list": list, "dict": dict, "object": Node}[kind]()


def link(parent: Any, child: Any) -> None:
    if type(parent) is list:
        parent.append(child)
    elif type(parent) is dict:
        parent[f"k{len(parent)}"] = child
    else:
        setattr(parent, f"a{len(parent.__dict__)}", child)


def distance_from(start: Any, target: Any) -> int:
    """The number of edges, as a reader counts them, on the shortest way down."""
    level, seen, depth = [start], {id(start)}, 0
    while level:
        if any(value is target for value in level):
            return depth
        following = []
        for value in level:
            children = (
                list(value)
                if type(value) is list
                else list((value if type(value) is dict else value.__dict__).values())
            )
            for child in children:
                if id(child) not in seen:
                    seen.add(id(child))
                    following.append(child)
        level, depth = following, depth + 1
    raise AssertionError("the target cannot be reached")


graphs = st.tuples(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30),
    st.lists(st.integers(0, 11), min_size=1, max_size=3),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs)
def test_path_evaluates_and_is_shortest(graph: tuple[list[str], list[tuple[int, int]], list[int]]) -> None:
    kinds, edges, hold = graph
    nodes = [make(kind) for kind in kinds]
    target = Node()
    for parent, child in pairwise(nodes):  # the planted path
        link(parent, child)
    link(nodes[-1], target)
    for first, second in edges:
        link(nodes[first % len(nodes)], [*nodes, target][second % (len(nodes) + 1)])
    module: Any = types.ModuleType("random_app")
    sys.modules["random_app"] = module
    try:
        module.ROOT = nodes[0]
        roots = [nodes[0]]
        for number, index in enumerate(hold):
            setattr(module, f"EXTRA{number}", nodes[index % len(nodes)])
            roots.append(nodes[index % len(nodes)])
        expected = min(distance_from(root, target) for root in roots)
        holder = explain([target], ignore={id(sys._getframe()), id(nodes), id(roots)})[0].holder
        assert holder.kind == "module"
        assert eval(holder.text, {"random_app": module}) is target
        if all(kind != "object" for kind in kinds):
            assert len(holder.path) == expected
        else:  # before Python 3.11, and once its dict was asked for, an instance is two references to the collector
            assert expected <= len(holder.path) <= 2 * expected
    finally:
        del sys.modules["random_app"]
        for node in nodes:
            getattr(node, "__dict__", node).clear()
    assert gc.isenabled()
