"""Walk over autograd graphs so that they can still be freed without overflowing the stack, and tell what they keep.

In torch 2.13 a node keeps the Python object of its first read, and freeing a chain recurses
(torch/csrc/autograd/function.cpp, Node::release_resources): after 50,000 nodes the process crashes. So a walk goes
`MAX_DEPTH` nodes deep at most, and all walks that were cut short, `ALLOWANCE` nodes together.
"""

from __future__ import annotations

from gc import get_referents
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.adapters.torch.node_hooks import NodeHooks
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess


MAX_DEPTH: Final = 500
"""Nodes on one path that a walk gives Python objects: 100 KB of stack to free; a thread has at least 512 KB."""

ALLOWANCE: Final = 8_000
"""Nodes with Python objects on one path, over all walks cut short: 1.6 MB of the main thread's 8 MB of stack."""

MAX_NODES: Final = 500_000
"""Nodes that one walk reads: each gets a Python object of some hundred bytes."""

MAX_STARTS: Final = 1_500
"""Tensors and nodes that a walk starts from, the most recent first: each start gives its node a Python object."""

SHOWN_STEPS: Final = 6
"""Steps from node to node that are written out; the middle ones of a longer path are only counted."""

_STEPS_A_NODE: Final = 100
"""Cost of reading a node and what it has saved, in steps of `Budget.worked`."""

_spent = [0]


class Place(NamedTuple):
    """How a walk met a node: from the node `above` (None: a start), at a position in its ``next_functions``."""

    above: int | None
    position: int
    distance: int


class GraphWalk:
    """A walk over a graph, newest node first. It refers to the nodes: drop it afterwards.

    `cut` tells whether a limit has kept it from a part of the graph.
    """

    def __init__(self, access: TorchAccess, budget: Budget, max_nodes: int = MAX_NODES) -> None:
        self._access = access
        self._budget = budget
        self._max_nodes = max_nodes
        self._limit = min(MAX_DEPTH, (ALLOWANCE - _spent[0]) // 16)
        self.nodes: dict[int, Any] = {}
        self._places: dict[int, Place] = {}
        self._starts: dict[int, tuple[Any, str]] = {}
        self._depth: dict[int, int] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._ties = count()
        self.cut = False

    def start(self, node: Any, origin: Any, edge: str) -> None:
        """Add a start before `walk`: a node, the object that it was read from, and how (``.grad_fn``)."""
        if id(node) in self._starts:
            return
        if self.full:
            self.cut = True
        else:
            self._starts[id(node)] = (origin, edge)
            if id(node) not in self.nodes:
                self._meet(node, Place(None, 0, 0), 0)

    @property
    def full(self) -> bool:
        """Return whether there is no room for another start, so that no further tensor's node need be read."""
        return len(self._starts) >= MAX_STARTS

    def walk(self) -> Iterator[Any]:
        """Yield the nodes, each once, until a limit is reached."""
        too_deep = False
        try:
            while self._heap:
                if self._budget.worked(_STEPS_A_NODE):
                    self.cut = True
                    return
                _, _, identity = heappop(self._heap)
                node = self.nodes[identity]
                yield node
                depth = self._depth[identity]
                if depth >= self._limit or (too_deep and self._places[identity].above is None):
                    # After a cut, a start may lie far below the nodes that were seen.
                    too_deep = too_deep or self._access.variable(node) is None
                    self.cut = self.cut or too_deep
                    continue
                for index, following in self._access.next_nodes(node):
                    self._reach(following, identity, index, depth)
        finally:
            if too_deep:
                _spent[0] += max(1, self._limit)

    def route(self, node: Any) -> tuple[Any, str]:
        """Return the start's object on a shortest path to `node`, and how the node is read from it."""
        indices: list[int] = []
        identity = id(node)
        place = self._places[identity]
        while place.above is not None:
            indices.append(place.position)
            identity, place = place.above, self._places[place.above]
        indices.reverse()
        origin, edge = self._starts[identity]
        steps = [f".next_functions[{index}][0]" for index in indices]
        if len(steps) > SHOWN_STEPS:
            half = SHOWN_STEPS // 2
            steps[half:-half] = [f" … {len(steps) - 2 * half} nodes … "]
        return origin, edge + "".join(steps)

    def _reach(self, node: Any, above: int, index: int, depth: int) -> None:
        distance = self._places[above].distance + 1
        identity = id(node)
        if identity not in self.nodes:
            if len(self.nodes) >= self._max_nodes:
                self.cut = True
                return
            self._meet(node, Place(above, index, distance), depth)
        elif distance < self._places[identity].distance:
            self._places[identity] = Place(above, index, distance)
        self._depth[identity] = max(self._depth[identity], depth + 1)

    def _meet(self, node: Any, place: Place, depth: int) -> None:
        identity = id(node)
        self.nodes[identity] = node
        self._places[identity] = place
        self._depth[identity] = depth
        heappush(self._heap, (-self._access.sequence_number(node), next(self._ties), identity))


LEAF_HOOKS: Final = "_post_accumulate_grad_hooks"

_RING_STEPS: Final = 10_000_000
"""Steps (`heap.budget`) of the walk that tells whether a graph may close a ring: 100,000 nodes. Of more, it may."""


def _walk_from(access: TorchAccess, tensors: Sequence[Any]) -> GraphWalk:
    """Return a walk over the graphs of these tensors, of `_RING_STEPS` at most."""
    walk = GraphWalk(access, Budget(_RING_STEPS))
    for tensor in tensors:
        node = None if access.read(tensor, "is_leaf") else access.grad_fn(tensor)
        if node is not None:
            walk.start(node, tensor, "")
    return walk


def _kept_by(access: TorchAccess, node: Any) -> list[Any]:
    """Return what a node of a graph keeps: its leaf, if it has one, and what it has saved."""
    values = (access.variable(node), *(saved.value for saved in access.saved(node)))
    return [value for value in values if value is not None]


def kept_below(access: TorchAccess, tensors: Sequence[Any]) -> Iterator[object]:
    """Yield what autograd graphs, gradients and views keep for these tensors, and these."""
    kept = list(tensors)
    for node in _walk_from(access, tensors).walk():
        kept += _kept_by(access, node)
    for value in filter(access.is_tensor, kept):
        yield value
        if access.read(value, "_is_view"):
            yield access.read(value, "_base")
        yield from (part.value for part in access.inside(value))
        if access.may_have_gradient(value):
            yield access.read(value, "grad")


def _has_graph(access: TorchAccess, value: Any) -> bool:
    if not access.is_tensor(value) or not access.read(value, "requires_grad"):
        return False
    if not access.read(value, "is_leaf") or safe_access.instance_dict(value):
        return True
    gradient = access.read(value, "grad")
    return access.is_tensor(gradient) and bool(access.read(gradient, "requires_grad"))


def may_close(access: TorchAccess, arrays: Sequence[object]) -> bool:
    """Tell whether a cycle may lead through the autograd graph of one of the arrays (see `_leads_back`)."""
    tensors = [array for array in arrays if _has_graph(access, array)]
    walk, hooks = _walk_from(access, tensors), NodeHooks(access)
    if any(_leads_back(access, tensor) for tensor in tensors):
        return True
    with hooks.reading(True):
        for node in walk.walk():
            if access.is_custom(node) or hooks.of(node):
                return True
            if any(_leads_back(access, value) for value in _kept_by(access, node)):
                return True
    return walk.cut


def _leads_back(access: TorchAccess, value: Any) -> bool:
    """Tell whether a value that a graph keeps may lead to what is younger, and so back to the graph.

    A node and its tensors refer to what was there before. What comes later is a gradient with a graph, a write in place,
    a hook, or an attribute: of the tensor, of its gradient, or of the base that it is a view of.
    """
    if not access.is_tensor(value) or _has_attributes(access, value):
        return True  # what a pack hook made is any object
    if access.read(value, "_backward_hooks") is not None or access.read(value, LEAF_HOOKS) is not None:
        return True
    base = access.read(value, "_base") if access.read(value, "_is_view") else None
    if base is not None:
        if _leads_back(access, base):
            return True
    elif not access.read(value, "is_leaf") and access.read(value, "_version"):
        return True
    gradient = access.read(value, "grad") if access.may_have_gradient(value) else None
    return gradient is not None and bool(access.read(gradient, "requires_grad") or _leads_back(access, gradient))


def _has_attributes(access: TorchAccess, tensor: Any) -> bool:
    """Tell whether a tensor's Python object refers to more than its class and its graph: by its dict, or by slots."""
    plain = (one for one in get_referents(tensor) if not (safe_access.is_a(one, type) or access.is_node(one)))
    return any(type(one) is not dict or one for one in plain)  # a read has made an empty one
