"""Who keeps these objects alive: one search backwards through the heap for all of them.

Level by level, `gc` is asked which containers refer to what the level before has found, until every target is reached
from a root that a person can edit. What cannot be reached from one is given the best worse answer: what runs, what an
exception pinned, native code, or that the search did not find out.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.holders.graph import Graph
from pytest_gpuleak.holders.heap import Deadline, PausedCollector, get_referents, referrers
from pytest_gpuleak.holders.native import RING_ROOT
from pytest_gpuleak.holders.native_hooks import is_hook_dict
from pytest_gpuleak.holders.native_stage import NativeStage
from pytest_gpuleak.holders.others import find_others
from pytest_gpuleak.holders.paths import Writer, pattern_of
from pytest_gpuleak.holders.roots import EDITABLE, RANKS, Roots

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pytest_gpuleak.findings import Holder
    from pytest_gpuleak.holders.others import Cut
    from pytest_gpuleak.holders.roots import Root

    Remember = Callable[[Root, Sequence[object]], None]
    Answer = tuple[Root, Sequence[object], Holder]

BUDGET_S: Final = 5.0
"""Seconds a search may take unless the caller says otherwise."""

OTHERS_BUDGET_S: Final = 2.0
"""Seconds that each look for a further holder may take."""

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
HOOKS_ROOT: Final = "native code (hooks of an autograd graph)"
CYCLE_ROOT: Final = "a reference cycle"
CROWD_ROOT: Final = "unknown (too many containers refer to it)"
TIMEOUT_ROOT: Final = "unknown (the search ran out of time)"


@dataclass(frozen=True)
class Explanation:
    """Who holds one target.

    Attributes:
        holder: the best root and the shortest path from it; kind ``native`` or ``unknown`` where there is none.
        pattern: the path without indices and addresses: what is held alike has the same.
        others: what else would keep it if the holder let go of it.
    """

    holder: Holder
    pattern: str
    others: tuple[Holder, ...] = ()


def explain(
    targets: Sequence[object],
    *,
    ignore: Collection[int] = (),
    budget_s: float = BUDGET_S,
    remember: Remember | None = None,
    known: Collection[Cut] = (),
) -> list[Explanation]:
    """Find out who holds each of `targets`.

    The whole heap must be visible to the collector: call `gc.unfreeze` before. Automatic collection is off during the
    search. Nothing that it looked at is kept.

    Args:
        targets: live objects; the sequence itself never counts as a holder.
        ignore: ids of the caller's containers and frames that refer to the targets and do not count either.
        budget_s: seconds after which the search stops; naming what was found comes on top.
        remember: told each root found and the chain of objects below it; it must not keep them.
        known: references that do not count.

    Returns:
        One explanation a target, in their order.
    """
    with PausedCollector():
        deadline = Deadline(budget_s)
        search = Search(targets, ignore, deadline, cuts=known)
        search.run()

        def again(some: Sequence[object], cuts: Collection[Cut]) -> Search:
            return search.again(some, cuts, min(OTHERS_BUDGET_S, deadline.left()))

        return search.explanations(remember, find_others(search, targets, again, known))


class Search:
    """The state of one search.

    A target counts as settled when an editable root was found no farther away than the levels that were completed: a
    nearer one could not have been missed. Objects that lead to settled targets alone are not expanded any more.

    Args:
        targets: live objects.
        ignore: ids of objects that do not count as holders.
        deadline: when to stop.
        hidden: by the id of what they refer to, containers that the collector does not show.
        cuts: references that do not count.
        native: whether to ask what the collector cannot see.
        roots: those of a search made before, which takes milliseconds to look up; what did not count then does not
            count now.
    """

    def __init__(
        self,
        targets: Sequence[object],
        ignore: Collection[int],
        deadline: Deadline,
        hidden: Mapping[int, Sequence[object]] = MappingProxyType({}),
        cuts: Collection[Cut] = (),
        *,
        native: bool = True,
        roots: Roots | None = None,
    ) -> None:
        self._hidden = hidden
        self._cuts = cuts
        self._asks_native = native
        self._graph = Graph()
        self._deadline = deadline
        self._order: list[int] = []
        for target in targets:
            self._order.append(id(target))
            self._graph.add(target)
        self._own: set[int] = set() if roots is None else roots.ignored
        self._own.update((id(targets), id(self._graph.objects), id(hidden), *map(id, hidden.values()), *ignore))
        self._roots = Roots(self._own) if roots is None else roots
        self._targets = frozenset(self._order)
        self._open = set(self._order)
        self._level = 0
        self._exact = True
        self._changed = False
        self._due: int | None = None
        self._native = NativeStage(self._graph, self._roots, targets, deadline, self._own)
        self._exhausted = False
        self._answers: dict[int, Answer] | None = None

    def again(self, targets: Sequence[object], cuts: Collection[Cut], budget_s: float) -> Search:
        """A search for some of the targets of this one that does not count some references, not yet run."""
        # The answers, kept here, refer to the targets by their chains.
        chains = [id(chain) for _, chain, _ in self.answers().values()]
        return Search(targets, chains, Deadline(budget_s), self._hidden, cuts, native=False, roots=self._roots)

    def run(self) -> None:
        """Search until every target is settled, nothing is left to expand, or the time is up."""
        frontier = list(dict.fromkeys(self._order))
        extra: int | None = None
        while self._open and not self._deadline.passed():
            if not frontier:
                frontier, new = self._native.ask(self._open) if self._asks_native else ([], False)
                if not new:
                    self._exhausted = True
                    return
                if not frontier:  # what was found leads to what has been searched already
                    self._settle()
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
        for node in wanted.intersection(self._hidden):
            containers.extend(self._hidden[node])
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
                    if (id(container), node) not in self._cuts:
                        self._attach(node, root)
                continue
            if self._roots.excluded(container):
                continue
            referents = wanted.intersection(map(id, get_referents(container)))
            if self._cuts:
                referents = {child for child in referents if (id(container), child) not in self._cuts}
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

    @property
    def objects(self) -> Mapping[int, object]:
        """The objects above the targets that were met, by id."""
        return self._graph.objects

    @property
    def expanded(self) -> Collection[int]:
        """The ids of those whose referrers were looked for."""
        return self._graph.expanded

    @property
    def linked(self) -> set[int]:
        """The ids of the objects at both ends of the references that native code holds."""
        return {identity for pair in self._native.links for identity in pair}

    @property
    def unexplained(self) -> bool:
        """Whether something refers to the objects met that was not found: known once native code has been asked."""
        return self._native.unexplained

    def found(self, ranks: Sequence[int]) -> int:
        """How many of the targets a root of these ranks leads to."""
        if not any(self._graph.roots.get(rank) for rank in ranks):
            return 0
        return len(self._graph.nearest_roots(ranks, set(self._order)))

    def explanations(
        self,
        remember: Remember | None = None,
        others: Mapping[tuple[str, str], tuple[Holder, ...]] = MappingProxyType({}),
    ) -> list[Explanation]:
        """One explanation a target, in the order in which they were given.

        Args:
            remember: told each root found and the chain of objects below it; it must not keep them.
            others: further holders, by kind and root of the first one.
        """
        answers = self.answers()
        writer = Writer(self._native.known)
        written: dict[int, Explanation] = {}
        for node in dict.fromkeys(self._order):
            if node in answers:
                root, chain, holder = answers[node]
                if remember is not None:
                    remember(root, chain)
            else:
                holder = self._rootless(node, writer)
            also = others.get((holder.kind, holder.root), ())
            written[node] = Explanation(holder, pattern_of(holder.text), also)
        return [written[node] for node in self._order]

    def answers(self) -> dict[int, Answer]:
        """For each target that a root leads to, by its id: the root, the chain of objects below it, and the holder.

        To be asked for once the search has run; written once.
        """
        if self._answers is None:
            self._answers = self._write_answers()
        return self._answers

    def _write_answers(self) -> dict[int, Answer]:
        """See `answers`."""
        chains: dict[int, tuple[list[int], Root]] = {}
        missing = set(self._order)
        for rank in RANKS:
            for node, (_, chain, root) in self._graph.nearest_roots((rank,), missing).items():
                chains[node] = (chain, root)
            missing.difference_update(chains)
        writer = Writer(self._native.known)
        objects = self._graph.objects
        for chain, _ in chains.values():
            writer.announce([objects[node] for node in chain])
        answers: dict[int, Answer] = {}
        for node, (links, root) in chains.items():
            values = [objects[link] for link in links]
            answers[node] = (root, values, writer.holder(values, root))
        return answers

    def _rootless(self, target: int, writer: Writer) -> Holder:
        """The holder of a target that no root leads to."""
        graph = self._graph
        if self._exhausted and self._exact:
            ring = self._native.ring(target)
            if 0 < len(ring) <= MAX_ROOTLESS:
                return writer.rootless([graph.objects[node] for node in ring], "native", RING_ROOT)
            orphans = graph.orphans((target,))
            chain = (
                graph.chain_from(orphans[0], target, MAX_ROOTLESS) if orphans else self._native.nearest_hidden(target)
            )
            if chain:
                objects = [graph.objects[node] for node in chain[-MAX_ROOTLESS:]]
                return writer.rootless(objects, "native", HOOKS_ROOT if is_hook_dict(objects[0]) else NATIVE_ROOT)
        root = TIMEOUT_ROOT
        if self._exhausted:
            root = CYCLE_ROOT if self._exact else CROWD_ROOT
        return writer.rootless([graph.objects[target]], "unknown", root)
