"""Random object graphs with a planted path: the text evaluates to the target, and no path is shorter.

Every kind of node knows what it refers to by itself, without the collector: an independent search over those references
says how long the shortest path is.
"""

from __future__ import annotations

import collections
import gc
import sys
import threading
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuleak.explain.explain import explain

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.newest, pytest.mark.usefixtures("small_heap")]

WORDS = ("set", "frozenset")
"""Kinds whose items Python has no expression for."""

LATE = ("tuple", "named tuple", "frozenset", "closure", "default", "method", "generator", "frame")
"""Kinds that are given what they refer to when they are made: no edge can be added to them later."""


class Node:
    """An object with attributes; some nodes are targets."""


class Pair(NamedTuple):
    first: object
    second: object


class Slotted:
    __slots__ = ("s0", "s1", "s2")


@dataclass
class Data:
    __slots__ = ("d0", "d1", "d2")
    d0: object
    d1: object
    d2: object


def closing_over(child: object) -> object:
    return lambda: child


def with_default(child: object) -> object:
    def step(batch: object = child) -> None:
        pass

    return step


def suspended(child: object) -> object:
    def steps(batch: object) -> Any:
        yield

    running = steps(child)
    next(running)
    return running


def raised(child: object) -> object:
    """A frame that has ended, of a thread of its own: those that called it would lead to everything else here."""

    def run() -> None:
        try:
            fail(child)
        except ValueError as error:
            trace: Any = error.__traceback__
            found.append(trace.tb_next.tb_frame)

    def fail(batch: object) -> None:
        raise ValueError

    found: list[object] = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found.pop()


MAKE: dict[str, Callable[..., Any]] = {
    "list": list,
    "dict": dict,
    "object": Node,
    "deque": collections.deque,
    "set": set,
    "ordered dict": collections.OrderedDict,
    "namespace": types.SimpleNamespace,
    "slots": Slotted,
    "dataclass": lambda: Data(None, None, None),
    "cell": types.CellType,
    "tuple": lambda child: (child,),
    "named tuple": lambda child: Pair(child, None),
    "frozenset": lambda child: frozenset([child]),
    "closure": closing_over,
    "default": with_default,
    "method": lambda child: types.MethodType(Node, child),
    "generator": suspended,
    "frame": raised,
}
KINDS = tuple(MAKE)


class Planted:
    """A graph: nodes, and what each refers to, noted when it was linked."""

    def __init__(self, kinds: list[str], target: Node) -> None:
        self.nodes: list[Any] = [target]
        self.kinds = ["object"]
        self.children: dict[int, list[int]] = {}
        for kind in reversed(kinds):  # the planted path
            below = self.nodes[0]
            if kind in LATE or not self._can_hold(kind, below):
                chosen = kind if self._can_hold(kind, below) else "tuple"
                node = MAKE[chosen](below)
                self.children[id(node)] = [id(below)]
            else:
                chosen, node = kind, MAKE[kind]()
            self.nodes.insert(0, node)
            self.kinds.insert(0, chosen)
            if chosen not in LATE:
                self.link(0, 1)

    @staticmethod
    def _can_hold(kind: str, child: object) -> bool:
        """Whether a set could have it; everything else has anything."""
        return kind not in WORDS or type(child).__hash__ is object.__hash__

    def link(self, first: int, second: int) -> None:
        """An edge from one node to another, where the first can take one more."""
        parent, child, kind = self.nodes[first], self.nodes[second], self.kinds[first]
        children = self.children.setdefault(id(parent), [])
        if kind in LATE or not self._can_hold(kind, child):
            return
        if kind in ("list", "deque"):
            parent.append(child)
        elif kind == "set":
            parent.add(child)
        elif kind in ("dict", "ordered dict"):
            parent[f"k{len(parent)}"] = child
        elif kind == "cell":
            if children:
                return
            parent.cell_contents = child
        elif kind in ("slots", "dataclass"):
            if len(children) == 3:
                return
            setattr(parent, f"{kind[0]}{len(children)}", child)
        else:
            setattr(parent, f"a{len(parent.__dict__)}", child)
        children.append(id(child))

    def distance(self, starts: set[int], target: object) -> tuple[int, int]:
        """Edges on a shortest way down as a reader counts them, and as the collector does at most."""
        level, seen, depth = set(starts), set(starts), 0
        while level:
            if id(target) in level:
                return depth, MOST_LINKS * depth
            level = {child for node in level for child in self.children.get(node, ())} - seen
            seen |= level
            depth += 1
        raise AssertionError("the target cannot be reached")

    def dissolve(self) -> None:
        """Break all cycles."""
        for node, kind in zip(self.nodes, self.kinds, strict=True):
            if kind in ("list", "dict", "deque", "set", "ordered dict"):
                node.clear()
            elif kind in ("object", "namespace"):
                node.__dict__.clear()
            elif kind == "cell":
                del node.cell_contents
            elif kind in ("slots", "dataclass"):
                for name in type(node).__slots__:
                    if hasattr(node, name):
                        delattr(node, name)


MOST_LINKS = 3
"""References that one edge may take in to the collector: a function's closure, a cell, its content."""

ONE_LINK = ("list", "dict", "deque", "set", "ordered dict", "slots", "dataclass", "cell", "tuple", "named tuple")
"""Kinds whose edges are one reference to the collector too: with these alone its shortest path is the reader's."""

graphs = st.tuples(
    st.one_of(
        st.lists(st.sampled_from(KINDS), min_size=1, max_size=8),
        st.lists(st.sampled_from(ONE_LINK), min_size=1, max_size=8),
    ),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=30),
    st.lists(st.integers(0, 11), min_size=1, max_size=3),
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs)
def test_path_evaluates_and_is_shortest(graph: tuple[list[str], list[tuple[int, int]], list[int]]) -> None:
    wanted, edges, hold = graph
    target = Node()
    planted = Planted(wanted, target)
    nodes, kinds = planted.nodes, planted.kinds
    for first, second in edges:  # cycles and short cuts among them
        planted.link(first % (len(nodes) - 1), second % len(nodes))
    module: Any = types.ModuleType("random_app")
    sys.modules["random_app"] = module
    own = {id(sys._getframe()), id(nodes), id(planted.__dict__)}
    try:
        roots: set[int] = set()
        for number, index in enumerate([0, *hold]):
            chosen = index % (len(nodes) - 1)
            setattr(module, f"EXTRA{number}", nodes[chosen])
            roots.add(id(nodes[chosen]))
        shortest, most = planted.distance(roots, target)
        holder = explain([target], ignore=own)[0].holder
        assert holder.kind == "module"
        if set(kinds[:-1]) <= {*ONE_LINK}:
            assert len(holder.path) == shortest
        else:
            assert shortest <= len(holder.path) <= most
        text = holder.root + "".join(step.edge for step in holder.path)
        assert holder.text == text or " more … " in holder.text
        if not any(" (" in step.edge for step in holder.path):
            assert eval(text, {"random_app": module}) is target
        else:
            assert set(kinds) & {*WORDS}
    finally:
        del sys.modules["random_app"]
        module.__dict__.clear()
        planted.dissolve()
    assert gc.isenabled()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=4, max_size=30),
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=2), min_size=2, max_size=5),
    st.sets(st.integers(0, 9), min_size=1, max_size=3),
)
@pytest.mark.usefixtures("small_heap")
def test_each_of_several_targets_has_its_shortest_path(
    edges: list[tuple[int, int]], hangs: list[list[tuple[int, int]]], roots: set[int]
) -> None:
    """Also where the search has passed over what led to nearer targets alone before it meets it again."""
    nodes: list[dict[str, Any]] = [{} for _ in range(10)]
    for first, second in edges:
        nodes[first][f"k{second}"] = nodes[second]
    distances: dict[int, int] = {}
    level, depth = roots, 0
    while level:
        distances |= dict.fromkeys(level, depth)
        level = {second for first, second in edges if first in level} - distances.keys()
        depth += 1
    targets, expected = [], []
    for number, places in enumerate(hangs):
        reached = [(node, chain) for node, chain in places if node in distances]
        if reached:
            targets.append(Node())
            expected.append(min(distances[node] + 1 + chain for node, chain in reached))
            for place, (node, chain) in enumerate(reached):
                held: Any = targets[-1]
                for _ in range(chain):
                    held = {"in": held}
                nodes[node][f"t{number}{place}"] = held
    held = None
    module: Any = types.ModuleType("random_app")
    sys.modules["random_app"] = module
    try:
        for root in roots:
            setattr(module, f"ROOT{root}", nodes[root])
        found = explain(targets, ignore={id(sys._getframe()), id(nodes)})
        for one, distance, explanation in zip(targets, expected, found, strict=True):
            holder = explanation.holder
            assert holder.kind == "module"
            assert len(holder.path) == distance
            assert eval(holder.root + "".join(step.edge for step in holder.path), {"random_app": module}) is one
    finally:
        del sys.modules["random_app"]
        module.__dict__.clear()
        for each in nodes:
            each.clear()


def test_every_kind_is_evaluated(app: Any) -> None:
    for kind in KINDS:
        target = Node()
        planted = Planted([kind], target)
        app.HELD = planted.nodes[0]
        own = {id(sys._getframe()), id(planted.nodes), id(planted.__dict__)}
        holder = explain([target], ignore=own)[0].holder
        assert len(holder.path) == 1, kind
        if kind in WORDS:
            assert holder.text == "leaky_app.HELD (item of set)"
        else:
            assert eval(holder.text, {"leaky_app": app}) is target, kind
        planted.dissolve()
