"""Walk over autograd graphs so that they can still be freed without overflowing the stack.

In torch 2.13 a node keeps the Python object of its first read, and freeing a chain recurses
(torch/csrc/autograd/function.cpp, Node::release_resources): after 50,000 nodes the process crashes. So a walk goes
`MAX_DEPTH` nodes deep at most, and all walks that were cut short, `ALLOWANCE` nodes together.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess
    from pytest_gpuleak.heap.budget import Budget

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
