"""Who keeps these objects alive: one search backwards through the heap for all of them.

Level by level, `gc` is asked which containers refer to what the level before has found, until every target is reached
from a root that a person can edit. What cannot be reached from one is given the best worse answer: what runs, what an
exception pinned, native code, or that the search did not find out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.holders.graph import Graph
from pytest_gpuleak.holders.heap import Deadline, PausedCollector, get_referents, referrers
from pytest_gpuleak.holders.native import finders
from pytest_gpuleak.holders.paths import Writer, pattern_of
from pytest_gpuleak.holders.roots import EDITABLE, RANKS, Roots

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytest_gpuleak.findings import Holder
    from pytest_gpuleak.holders.roots import Root

BUDGET_S: Final = 5.0
"""Seconds a search may take unless the caller says otherwise."""

EXTRA_LEVELS: Final = 30
"""Levels that the search goes on for an editable root once every target has a worse one."""

MAX_WIDTH: Final = 50_000
"""Containers of the common kinds that are looked at on one level.

Where more refer to the targets (a million lists with the same tensor), they are most likely alike, and one of them is
explanation enough. A path found below may then be longer than another that was left out.
"""

MAX_ROOTLESS: Final = 24
"""Edges shown of a path that ends at no root."""

NATIVE_ROOT: Final = "native code"
CYCLE_ROOT: Final = "a reference cycle"
CROWD_ROOT: Final = "unknown (too many containers refer to it)"
TIMEOUT_ROOT: Final = "unknown (the search ran out of time)"


@dataclass(frozen=True)
class Explanation:
    """Who holds one target.

    Attributes:
        holder: the best root and the shortest path from it; kind ``native`` or ``unknown`` where there is none.
        pattern: the path without indices and addresses: what is held alike has the same.
    """

    holder: Holder
    pattern: str


def explain(
    targets: Sequence[object], *, ignore: Collection[int] = (), budget_s: float = BUDGET_S
) -> list[Explanation]:
    """Find out who holds each of `targets`.

    The whole heap must be visible to the collector: call `gc.unfreeze` before. Automatic collection is off during the
    search. Nothing that it looked at is kept.

    Args:
        targets: live objects; the sequence itself never counts as a holder.
        ignore: ids of the caller's containers and frames that refer to the targets and do not count either.
        budget_s: seconds after which the search stops; naming what was found comes on top.

    Returns:
        One explanation a target, in their order.
    """
    with PausedCollector():
        search = _Search(targets, ignore, Deadline(budget_s))
        search.run()
        return search.explanations()


class _Search:
    """The state of one search.

    A target counts as settled when an editable root was found no farther away than the levels that were completed: a
    nearer one could not have been missed. Objects that lead to settled targets alone are not expanded any more.
    """

    def __init__(self, targets: Sequence[object], ignore: Collection[int], deadline: Deadline) -> None:
        self._graph = Graph()
        self._deadline = deadline
        self._order: list[int] = []
        for target in targets:
            self._order.append(id(target))
            self._graph.add(target)
        self._own = {id(targets), id(self._graph.objects), *ignore}
        self._roots = Roots(self._own)
        self._targets = frozenset(self._order)
        self._open = set(self._order)
        self._level = 0
        self._exact = True
        self._changed = False
        self._due: int | None = None
        self._known: dict[tuple[int, int], str] = {}
        self._exhausted = False

    def run(self) -> None:
        """Search until every target is settled, nothing is left to expand, or the time is up."""
        frontier = list(dict.fromkeys(self._order))
        asked_native = False
        extra: int | None = None
        while self._open and not self._deadline.passed():
            if not frontier:
                if asked_native:
                    self._exhausted = True
                    return
                asked_native = True
                frontier = self._ask_native()
                continue
            found, complete = self._expand(frontier)
            if not complete:
                return
            self._level += 1
            frontier = found
            if self._changed or (self._due is not None and self._level >= self._due):
                self._changed = False
                if self._settle():
                    frontier = self._graph.unexpanded(self._open)
                if extra is None and self._all_have_worse():
                    extra = self._level + EXTRA_LEVELS
            if extra is not None and self._level >= extra:
                return

    def _expand(self, frontier: Sequence[int]) -> tuple[list[int], bool]:
        """Look for the referrers of some objects: what was new among them, and whether the level was completed."""
        graph = self._graph
        wanted = set(frontier)
        children = tuple([graph.objects[node] for node in frontier])
        for node, root in self._roots.local_roots(wanted):
            self._attach(node, root)
        containers = referrers(children, self._deadline)
        own = {id(children), id(containers)}
        try:
            new = self._take_in(self._narrow(containers, own), wanted, own)
        finally:
            containers.clear()
        graph.expanded.update(wanted)
        return new, not self._deadline.passed()

    def _narrow(self, containers: list[object], own: set[int]) -> list[object]:
        """Containers without those of common kinds beyond `MAX_WIDTH`; modules and the like are all kept."""
        if len(containers) <= MAX_WIDTH:
            return containers
        kept: list[object] = []
        room = MAX_WIDTH
        for container in containers:
            common = self._roots.is_common(container)
            if not common or room > 0:
                kept.append(container)
                room -= common
        self._exact = False
        own.add(id(kept))
        return kept

    def _take_in(self, containers: Sequence[object], wanted: set[int], own: set[int]) -> list[int]:
        """Add referrers of the objects `wanted` to the graph, with their roots; the new ones that must be expanded."""
        graph = self._graph
        new: list[int] = []
        for index, container in enumerate(containers):
            if index % 1024 == 0 and self._deadline.passed():
                break
            if id(container) in own or id(container) in self._own:
                continue
            if self._roots.is_namespace(container):
                for node, root in self._roots.global_roots(container, wanted):
                    self._attach(node, root)
                continue
            if self._roots.excluded(container):
                continue
            referents = wanted.intersection(map(id, get_referents(container)))
            if not referents:
                continue
            is_new = graph.add(container)
            self._changed = self._changed or not is_new  # a root above a known object is above these now
            for child in referents:
                graph.connect(id(container), child)
            if is_new or id(container) in self._targets:
                if self._attach_root(container):
                    graph.leaves.add(id(container))
                elif is_new:
                    new.append(id(container))
        return new

    def _attach_root(self, container: object) -> bool:
        """Attach the root that a container is, if it is one; whether there is no need to look above it."""
        root = self._roots.root_of(container)
        if root is None:
            return False
        self._attach(id(container), root)
        return root.rank == EDITABLE

    def _attach(self, node: int, root: Root) -> None:
        """Attach a root to an object."""
        self._graph.attach(node, root)
        self._changed = True

    def _settle(self) -> bool:
        """Take the targets off the search whose nearest editable root is known; whether there were some."""
        if not self._graph.roots.get(EDITABLE):
            return False
        settled: list[int] = []
        self._due = None
        for node, (distance, _, _) in self._graph.nearest_roots((EDITABLE,), self._open).items():
            if distance <= self._level:
                settled.append(node)
            elif self._due is None or distance < self._due:
                self._due = distance
        self._open.difference_update(settled)
        return bool(settled)

    def _all_have_worse(self) -> bool:
        """Whether all open targets are reached from some root."""
        if not any(self._graph.roots.get(rank) for rank in RANKS):
            return False
        return len(self._graph.nearest_roots(RANKS, self._open)) == len(self._open)

    def _ask_native(self) -> list[int]:
        """Ask the finders of native edges about what nothing refers to; the objects to go on from."""
        graph = self._graph
        orphans = tuple([graph.objects[node] for node in graph.orphans(self._open)])
        if not orphans:
            return []
        local_values = self._roots.local_values()
        new: list[int] = []
        for finder in finders():
            for link in finder.find(orphans, local_values, self._deadline):
                for value in (link.child, link.parent):
                    if graph.add(value):
                        new.append(id(value))
                graph.connect(id(link.parent), id(link.child))
                if link.edge is not None:
                    self._known[id(link.parent), id(link.child)] = link.edge
        return new

    def explanations(self) -> list[Explanation]:
        """One explanation a target, in the order in which they were given."""
        chains: dict[int, tuple[list[int], Root]] = {}
        missing = set(self._order)
        for rank in RANKS:
            for node, (_, chain, root) in self._graph.nearest_roots((rank,), missing).items():
                chains[node] = (chain, root)
            missing.difference_update(chains)
        writer = Writer(self._known)
        objects = self._graph.objects
        for chain, _ in chains.values():
            writer.announce([objects[node] for node in chain])
        written: dict[int, Explanation] = {}
        for node in dict.fromkeys(self._order):
            if node in chains:
                chain, root = chains[node]
                holder = writer.holder([objects[link] for link in chain], root)
            else:
                holder = self._rootless(node, writer)
            written[node] = Explanation(holder, pattern_of(holder.text))
        return [written[node] for node in self._order]

    def _rootless(self, target: int, writer: Writer) -> Holder:
        """The holder of a target that no root leads to."""
        graph = self._graph
        orphans = graph.orphans((target,)) if self._exhausted and self._exact else []
        if orphans:
            chain = graph.chain_from(orphans[0], target, MAX_ROOTLESS)
            return writer.rootless([graph.objects[node] for node in chain], "native", NATIVE_ROOT)
        root = TIMEOUT_ROOT
        if self._exhausted:
            root = CYCLE_ROOT if self._exact else CROWD_ROOT
        return writer.rootless([graph.objects[target]], "unknown", root)
