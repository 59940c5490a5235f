"""Ask native code for the references that the collector does not show, once nothing visible is left to follow."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.registry import borrower_finder, finders
from pytest_gpuleak.explain.unaccounted import Hidden, owner_counter
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_gpuleak.adapters.reference_protocol import NativeObjects, ReferenceFinder
    from pytest_gpuleak.explain.reference_graph import Cut, Graph
    from pytest_gpuleak.explain.roots.roots import Roots
    from pytest_gpuleak.heap.budget import Budget
    from pytest_gpuleak.heap.hidden_references import HeapFinder, Link

MAX_ROUNDS: Final = 8
"""Number of times that native code is asked: a path may enter and leave C++ that often."""

MAX_HEAP_WALKS: Final = 2
"""Number of walks over the whole heap. The second sees what the first has met inside what the collector does not track:
a NumPy array of objects may hold what holds the array."""

RING_STEPS: Final = 2_000_000
"""Steps (`heap.budget`) of following native links round their rings: each of a thousand tensors may have one of its own,
and each of thousands of links may lie on one long one."""


@dataclasses.dataclass(eq=False, repr=False)
class NativeReferences:
    """Ask for hidden referrers, in rounds, the cheap questions first. One instance a search; links go to its graph.

    `known` has names of references that only their finder knows, and `links` the references found, by the ids of parent
    and child. Objects in `hidden` have a referrer that was not found.
    Without `_walks` the frameworks alone are asked; `natives` are their objects where an earlier search has listed them,
    since lists of one's own would show the other's as holders.
    """

    _graph: Graph
    _roots: Roots
    _targets: Sequence[object]
    _budget: Budget
    _own: set[int]
    _cuts: Collection[Cut]
    _frameworks: Sequence[ReferenceFinder]
    _walks: bool = True
    natives: Sequence[NativeObjects] = ()

    def __post_init__(self) -> None:
        self._counted = Counter([child for _, child in self._cuts])
        self._rounds = 0
        self._heap_walks = MAX_HEAP_WALKS if self._walks else 0
        self.links: dict[tuple[int, int], None] = {}
        self._known_rings: tuple[int, list[list[int]]] = -1, []
        self._known = set(self._cuts)
        self.hidden: frozenset[int] = frozenset()
        self.known: dict[tuple[int, int], str] = {}

    def ask(self, starts: Collection[int]) -> tuple[list[int], bool]:
        """Look for hidden referrers above the targets `starts`; return ids to expand, and whether there were any."""
        self._rounds += 1
        if self._rounds > MAX_ROUNDS:
            return [], False
        graph = self._graph
        nodes = [node for node in graph.above(starts) if node in graph.expanded]
        if self._rounds == 1:
            self._take_census()
        linked = Counter(child for _, child in self.links)
        hidden = Hidden(graph, nodes, self._counted, self._budget).find(linked, owner_counter(self._frameworks))
        self.hidden = frozenset(hidden.by_native.keys() | hidden.by_reference.keys())
        links: list[Link] = []
        for natives in self.natives:
            links += natives.links(hidden.by_native, hidden.unheld, self._known, self._budget)
        # A ring keeps what it leads to, whoever else lends or borrows it: the walk over the heap would not free it.
        if not links and self._heap_walks and not self.kept_by_rings().issuperset(starts):
            self._heap_walks -= 1
            links = self._walk_heap(hidden.by_reference, hidden, finders())
            if not links:
                # What lent its memory has owners in native code that are told by its address alone.
                lenders = hidden.by_native | hidden.by_reference
                links = self._walk_heap(lenders, hidden, [borrower_finder()])
            if not links:
                self._heap_walks = 0
        return self._take_in(links), bool(links)

    def _take_census(self) -> None:
        """List the frameworks' objects; the search's own lists of objects are none of their holders."""
        if not self.natives:
            taken = (framework.take_census(self._budget) for framework in self._frameworks)
            self.natives = [natives for natives in taken if natives is not None]
        lists = (one for natives in self.natives for one in natives.lists())
        for objects in (self._targets, *lists):
            self._own.add(id(objects))
            self._counted.update(map(id, objects))

    def may_close_rings(self, targets: Sequence[object]) -> bool:
        """Tell whether a ring through native code may keep one of the targets alive."""
        return any(framework.may_close_rings(targets) for framework in self._frameworks)

    def root_of(self, value: object) -> str:
        """Describe what native code uses an object for that it alone holds; empty if unknown."""
        return next(filter(None, (framework.root_of(value) for framework in self._frameworks)), "")

    def _walk_heap(self, wanted: Mapping[int, object], hidden: Hidden, finders: Sequence[HeapFinder]) -> list[Link]:
        """Return links that only a walk over the whole heap shows. It is expensive, so it comes last."""
        links: list[Link] = []
        if wanted:
            local_values = self._roots.local_values()
            for find in finders:
                links.extend(find(tuple(wanted.values()), local_values, self._budget))
        # Dicts of arrays alone are untracked, and the walk meets the search's own as it meets the user's.
        own = {*self._own, id(wanted), id(hidden.by_native), id(hidden.by_reference)}
        pairs = ((link, (id(link.parent), id(link.child))) for link in links)
        return [link for link, pair in pairs if pair[0] not in own and pair not in self._known]

    def _take_in(self, links: Sequence[Link]) -> list[int]:
        graph = self._graph
        new: dict[int, None] = {}
        for link in links:
            for value in (link.child, link.parent):
                graph.add(value)
                if id(value) not in graph.expanded and id(value) not in graph.leaves:
                    new[id(value)] = None
            pair = (id(link.parent), id(link.child))
            if pair not in self.links:
                self.links[pair] = None
                self._known.add(pair)
                graph.connect(*pair)
            if link.edge is not None:
                self.known[pair] = link.edge
        return list(new)

    def kept_by_rings(self) -> set[int]:
        """Return the ids of all that rings through native code keep alive; empty without such a ring."""
        return self._graph.below(self.short_rings(len(self._graph.objects), self._budget))

    def short_rings(self, limit: int, budget: Budget) -> dict[int, list[int]]:
        """Return for each object on a ring through native code of at most `limit` objects the ids of the shortest."""
        found: dict[int, list[int]] = {}
        for half in self._rings(budget):
            for node in half if len(half) <= limit else ():
                if node not in found or len(half) < len(found[node]):
                    found[node] = half
        return found

    def ring(self, target: int, above: set[int], budget: Budget) -> list[int]:
        """Return the ids of the shortest ring through native code, and from there to a target; empty without one."""
        graph = self._graph
        rings = [half for half in self._rings(budget) if half[0] in above]
        found = [led_from_ring(half, graph.chain_to_any(target, set(half))) for half in rings]
        return min(found, key=self._order, default=[])

    def _rings(self, budget: Budget) -> list[list[int]]:
        """Return the ids on rings that a reference in native code closes, from its child to its parent."""
        version, rings = self._known_rings
        if version != self._graph.edges:
            # Of thousands of references in autograd graphs, few lie on a ring.
            closing = self._graph.on_rings(self.links, budget)
            links = list(self.links) if closing is None else closing
            part = budget.part(RING_STEPS)
            halves = (self._graph.chain_to_any(parent, (child,), part) for parent, child in links)
            rings = list(filter(None, halves))
            if closing is not None:  # else the next to ask may have time
                self._known_rings = self._graph.edges, rings
        return rings

    def _order(self, ring: Sequence[int]) -> tuple[int, list[str]]:
        return len(ring), [safe_access.class_label(type(self._graph.objects[node])) for node in ring]


def led_from_ring(ring: Sequence[int], down: Sequence[int]) -> list[int]:
    """Return a ring once round, from the object that a path leads down from, and that path."""
    turn = ring.index(down[0])
    return [*ring[turn:], *ring[:turn], *down]
