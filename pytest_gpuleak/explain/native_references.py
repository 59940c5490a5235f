"""The part of a search that asks for what the collector does not show, once nothing visible is left to follow."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.registry import finders
from pytest_gpuleak.explain.unaccounted import Hidden, owner_counter
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pytest_gpuleak.adapters.protocol import NativeObjects, ReferenceFinder
    from pytest_gpuleak.explain.cuts import Cut
    from pytest_gpuleak.explain.reference_graph import Graph
    from pytest_gpuleak.explain.roots.roots import Roots
    from pytest_gpuleak.heap.hidden_references import Link
    from pytest_gpuleak.heap.referrers import Deadline

MAX_ROUNDS: Final = 8
"""Times that native code is asked: a path may enter C++ and leave it that often."""

MAX_RING_LINKS: Final = 32
"""Native links from which a ring is looked for."""


class NativeStage:
    """Asks for hidden referrers, in rounds, the cheap ones first. One a search.

    Args:
        graph: what the search has found; links are added to it.
        roots: recognises roots.
        targets: what the search was asked for.
        deadline: when to stop.
        own: ids of the search's own containers; the lists made here are added.
        cuts: references that do not count.
        frameworks: tell what their native code holds.

    Attributes:
        known: names of edges that only their finder knows, by the ids of parent and child.
        links: the references that were found, as pairs of ids, in their order.
        hidden: the ids of the objects with a referrer that was not found.
    """

    def __init__(
        self,
        graph: Graph,
        roots: Roots,
        targets: Sequence[object],
        deadline: Deadline,
        own: set[int],
        cuts: Collection[Cut],
        frameworks: Sequence[ReferenceFinder],
    ) -> None:
        self._own = own
        self._frameworks = frameworks
        self._natives: list[NativeObjects] = []
        self._counted = Counter([child for _, child in cuts])
        self._graph = graph
        self._roots = roots
        self._targets = targets
        self._deadline = deadline
        self._rounds = 0
        self._heap_walked = False
        self._unexplained = False
        self.links: dict[tuple[int, int], None] = {}
        self._known = set(cuts)
        self.hidden: frozenset[int] = frozenset()
        self.known: dict[tuple[int, int], str] = {}

    def ask(self, starts: Iterable[int]) -> tuple[list[int], bool]:
        """Look for hidden referrers of what was found above the targets `starts`.

        Returns:
            The ids of the objects to go on from, and whether there was anything new.
        """
        self._rounds += 1
        if self._rounds > MAX_ROUNDS:
            return [], False
        graph = self._graph
        nodes = [node for node in graph.above(starts) if node in graph.expanded]
        rooted: set[int] = set()
        for attached in graph.roots.values():
            rooted.update(attached)
        if self._rounds == 1:
            self._take_census()
        linked = Counter(child for _, child in self.links)
        owners = owner_counter(self._frameworks)
        hidden = Hidden(
            graph.objects, nodes, graph.parents_of(nodes), rooted, self._counted, linked, self._deadline, owners
        )
        self._unexplained = bool(hidden.by_reference)
        self.hidden = frozenset(hidden.by_native.keys() | hidden.by_reference.keys())
        links: list[Link] = []
        for natives in self._natives:
            links += natives.links(hidden.by_native, hidden.unheld, self._known, self._deadline)
        if not links and not self._heap_walked:
            self._heap_walked = True
            links = self._walk_heap(tuple(hidden.by_reference.values()))
        return self._take_in(links), bool(links)

    def leave_out_heap(self) -> None:
        """Ask the frameworks alone: no ring is closed by what only a walk over the whole heap shows."""
        self._heap_walked = True

    def _take_census(self) -> None:
        """Find the frameworks' live objects, and count the search's own references."""
        taken = (framework.take_census(self._deadline) for framework in self._frameworks)
        self._natives = [natives for natives in taken if natives is not None]
        lists = [found for natives in self._natives for found in natives.lists()]
        self._own.update(map(id, lists))
        self._counted.update(map(id, chain.from_iterable((self._targets, *lists))))

    def may_close_rings(self, targets: Sequence[object]) -> bool:
        """Whether a ring through native code may keep one of the targets alive."""
        return any(framework.may_close_rings(targets) for framework in self._frameworks)

    def root_of(self, value: object) -> str:
        """What native code uses an object for that it alone holds, in words; empty if unknown."""
        return next(filter(None, (framework.root_of(value) for framework in self._frameworks)), "")

    def _walk_heap(self, wanted: Sequence[object]) -> list[Link]:
        """Links that only a walk over the whole heap shows: the dearest, and so the last."""
        links: list[Link] = []
        if wanted:
            local_values = self._roots.local_values()
            for finder in finders():
                links.extend(finder.find(wanted, local_values, self._deadline))
        return [link for link in links if (id(link.parent), id(link.child)) not in self._known]

    def _take_in(self, links: Sequence[Link]) -> list[int]:
        """Add links to the graph; the objects on them that must be expanded."""
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
        """The ids of all that rings through native code keep alive; empty where there is none."""
        return self._graph.below(self.on_short_rings(len(self._graph.objects)))

    def on_short_rings(self, limit: int) -> list[int]:
        """The ids of the objects on rings through native code of at most `limit` objects."""
        found: dict[int, None] = {}
        for parent, child in list(self.links)[:MAX_RING_LINKS]:
            half = self._graph.chain_from(child, parent, len(self._graph.objects))
            if half[0] == child and len(half) <= limit:
                found.update(dict.fromkeys(half))
        return list(found)

    def ring(self, target: int, above: set[int]) -> list[int]:
        """The ids on a ring through native code that keeps a target alive; empty where there is none.

        From where the way to the target leaves the ring, round to there, and down to the target. Of several the
        shortest, and of these the one whose types sort first: the same whatever else is alive.

        Args:
            target: the id of the target.
            above: the ids of the objects from which it can be reached.
        """
        graph = self._graph
        links = [link for link in self.links if above.issuperset(link)]
        found: list[list[int]] = []
        for parent, child in links[:MAX_RING_LINKS]:
            half = graph.chain_from(child, parent, len(above))
            if half[0] == child:
                down = graph.chain_to_any(target, set(half))
                turn = half.index(down[0])
                found.append([*half[turn:], *half[:turn], *down])
        return min(found, key=self._order, default=[])

    def _order(self, ring: Sequence[int]) -> tuple[int, list[str]]:
        """What makes one ring come before another."""
        return len(ring), [safe_access.class_label(type(self._graph.objects[node])) for node in ring]

    @property
    def unexplained(self) -> bool:
        """Whether there are references that neither the collector nor native code has accounted for."""
        return self._unexplained

    def nearest_hidden(self, target: int) -> list[int]:
        """The ids down to a target from the nearest object with a referrer that was not found; empty where none has."""
        return self._graph.chain_to_any(target, self.hidden)
