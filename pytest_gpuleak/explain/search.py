"""Search backwards through the heap for who keeps objects alive: one search for all targets.

Level by level, `gc` returns the containers that refer to the level before, until a root that a person can edit leads to
every target. Without one, a target gets the best worse answer: what runs, an exception, C++, or not found out.
"""

from __future__ import annotations

from dataclasses import dataclass
from gc import get_referents
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from pytest_gpuleak.adapters.registry import own_reference_finders
from pytest_gpuleak.explain.answers import Answers
from pytest_gpuleak.explain.native_references import NativeReferences
from pytest_gpuleak.explain.paths import Writer, pattern_of
from pytest_gpuleak.explain.reference_graph import Graph, KnownReferrers
from pytest_gpuleak.explain.rootless import Rootless
from pytest_gpuleak.explain.roots.roots import EDITABLE, RANKS, Roots
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.hidden_references import RING_ROOT
from pytest_gpuleak.heap.referrers import referrers

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Holder


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pytest_gpuleak.adapters.reference_protocol import ReferenceFinder
    from pytest_gpuleak.explain.reference_graph import Cut
    from pytest_gpuleak.explain.roots.roots import Root
    from pytest_gpuleak.model.findings import Holder

    Remember = Callable[[Root, object], None]

SEARCH_STEPS: Final = 50_000_000
"""Steps (`heap.budget`) of a search unless the caller states others: a hundred passes over a heap of half a million objects."""

OTHERS_STEPS: Final = 15_000_000
"""Steps of each search for a further holder, which knows most referrers from the first one."""

EXTRA_LEVELS: Final = 30
"""Levels that the search goes on for an editable root once every target has a worse one."""

MAX_WIDTH: Final = 50_000
"""Containers that are recorded on one level. Of plain ones beyond that, only sole referrers of an object are kept.

Many referrers of the same targets (a million lists with one tensor) are most likely alike, and one is explanation
enough. A path found below may then be longer than another that was left out.
"""

MAX_EDGES: Final = 2_000_000
"""References that are recorded in one search. Beyond that, plain containers get one reference to each object."""

WRITING_STEPS: Final = 20_000_000
"""Steps of naming the answers, beside what the search has left: 300,000 references are named by them."""


class Question(NamedTuple):
    """What a search is to find out, and within which limits.

    Attributes:
        targets: the objects whose holders are searched for; the sequence itself is none.
        budget: where to stop.
        ignore: ids of objects that do not count as holders.
        hidden: by the id of what they refer to, containers that the collector does not show.
        cuts: references that do not count.
        native: whether to ask frameworks for what the collector cannot see.
        walks: whether to walk the heap, too, for what no framework tells.
        frameworks: tell what their native code holds; None: the plugin's own.
    """

    targets: Sequence[object]
    budget: Budget
    ignore: Collection[int] = ()
    hidden: Mapping[int, Sequence[object]] = MappingProxyType({})
    cuts: Collection[Cut] = ()
    native: bool = True
    walks: bool = True
    frameworks: Sequence[ReferenceFinder] | None = None


class Search:
    """The state of one search.

    A target counts as settled when an editable root was found no farther away than the levels that were completed: a
    nearer one could not have been missed. Objects that lead to settled targets alone are not expanded any more.

    From an `earlier` search it takes the roots, which take milliseconds to look up, what did not count as a holder, and
    the referrers that were met.
    """

    def __init__(self, question: Question, earlier: Search | None = None) -> None:
        self._question = question
        self._cuts = question.cuts
        self._budget = question.budget
        self._graph = Graph()
        self._order = list(map(id, question.targets))
        for target in question.targets:
            self._graph.add(target)
        self._own: set[int] = set() if earlier is None else earlier.roots.ignored
        lists = (question, question.targets, question.hidden, *question.hidden.values(), self._graph.objects)
        self._own.update(map(id, lists), question.ignore)
        self.roots: Roots = Roots(self._own) if earlier is None else earlier.roots
        self._targets = frozenset(self._order)
        self._open = set(self._order)
        self._level = 0
        self._exact = True
        self._changed = False
        self._due: int | None = None
        self._all_seen = False
        frameworks = own_reference_finders() if question.frameworks is None else question.frameworks
        self.native: NativeReferences = NativeReferences(
            self._graph,
            self.roots,
            question.targets,
            self._budget,
            self._own,
            self._cuts,
            frameworks,
            question.walks,
            () if earlier is None else earlier.native.natives,
        )
        self._exhausted = False
        self.known: KnownReferrers = KnownReferrers() if earlier is None else earlier.known
        self.known.add_objects(self._graph.objects)
        self._answers: Answers | None = None

    def again(
        self, targets: Sequence[object], cuts: Collection[Cut], budget: Budget | None = None, *, native: bool = False
    ) -> Search:
        """A search for some of the targets of this one that does not count some references, not yet run."""
        budget = self._budget.part(OTHERS_STEPS) if budget is None else budget
        # No ring is closed by a reference that only a walk over the whole heap shows.
        question = self._question._replace(
            targets=targets, budget=budget, ignore=(), cuts=cuts, native=native, walks=False
        )
        return Search(question, self)

    def run(self) -> None:
        """Search until every target is settled, nothing is left to expand, or the budget is spent."""
        frontier = list(dict.fromkeys(self._order))
        extra: int | None = None
        settled = False
        while self._open and not self._budget.spent:
            if not frontier:
                # All visible paths are known, so no shorter one can be found.
                self._all_seen = True
                self._settle()
                if not self._open:
                    return
                frontier, new = self.native.ask(self._open) if self._question.native else ([], False)
                if not new:
                    # The walk over the heap stops where the budget is spent: what it did not meet may hold a target.
                    self._exhausted = not self._budget.spent
                    return
                self._all_seen = False
                continue
            found, complete = self._expand(frontier)
            if not complete:
                return
            self._level += 1
            frontier = found
            if self._changed or (self._due is not None and self._level >= self._due):
                self._changed = False
                settled |= self._settle()
                if settled:
                    # What leads to settled targets alone is passed over, until an open one reaches it too.
                    frontier = self._graph.unexpanded(self._open)
                if extra is None and self._all_have_worse():
                    extra = self._level + EXTRA_LEVELS
            if extra is not None and self._level >= extra:
                return

    def _expand(self, frontier: Sequence[int]) -> tuple[list[int], bool]:
        graph = self._graph
        wanted = set(frontier)
        for node, root in self.roots.local_roots(wanted):
            self._attach(node, root)
        nearby, complete = self.known.referrers(frontier)
        children = tuple([graph.objects[node] for node in frontier if node not in complete])
        containers = referrers(children, self._budget) if children else []
        if nearby:
            met = set(map(id, containers))
            containers += [one for one in {id(one): one for one in nearby}.values() if id(one) not in met]
        for node in wanted.intersection(self._question.hidden):
            containers.extend(self._question.hidden[node])
        own = {id(children), id(containers), id(nearby)}
        try:
            new = self._take_in(containers, wanted, own)
        finally:
            containers.clear()
            nearby.clear()
        graph.expanded.update(wanted)
        in_full = not self._budget.spent
        if in_full:
            self.known.complete(wanted)
        return new, in_full

    def _take_in(self, containers: Sequence[object], wanted: set[int], own: set[int]) -> list[int]:
        new: list[int] = []
        room = MAX_WIDTH
        for container in containers:
            if self._budget.worked(16):
                break
            if id(container) in own or id(container) in self._own:
                continue
            if self.roots.is_namespace(container):
                self._attach_globals(container, wanted)
                continue
            if self.roots.excluded(container):
                continue
            values = get_referents(container)
            if self._budget.worked(len(values)):
                break
            held = wanted.intersection(map(id, values))
            del values
            referents = self._followed(container, held, has_room=room >= 0)
            room -= 1
            if referents and self._connect(container, referents):
                new.append(id(container))
        return new

    def _connect(self, container: object, referents: set[int]) -> bool:
        """Note what a container refers to; return whether to look above it."""
        graph = self._graph
        is_new = graph.add(container)
        self._changed = self._changed or not is_new  # a root above a known object is above these now
        for child in referents:
            graph.connect(id(container), child)
            self.known.note(child, id(container))
        if (is_new or id(container) in self._targets) and self._attach_root(container):
            graph.leaves.add(id(container))
            return False
        return is_new

    def _attach_globals(self, namespace: object, wanted: set[int]) -> None:
        for node, root in self.roots.global_roots(namespace, wanted):
            self.known.note_namespace(node, namespace)
            if (id(namespace), node) not in self._cuts:
                self._attach(node, root)

    def _followed(self, container: object, held: set[int], *, has_room: bool) -> set[int]:
        """Return which of the objects that a container refers to are found by this reference."""
        referents = held
        if held and (self._graph.edges > MAX_EDGES or not has_room) and self.roots.is_common(container):
            referents = self._graph.unheld(held)
            self._exact = self._exact and len(referents) == len(held)
        if self._cuts:
            referents = {child for child in referents if (id(container), child) not in self._cuts}
        if len(referents) < len(held):
            self.known.miss(held - referents)
        return referents

    def _attach_root(self, container: object) -> bool:
        root = self.roots.root_of(container)
        if root is None:
            return False
        self._attach(id(container), root)
        return root.rank == EDITABLE

    def _attach(self, node: int, root: Root) -> None:
        self._graph.attach(node, root)
        self._changed = True

    def _settle(self) -> bool:
        if not self._graph.roots.get(EDITABLE):
            return False
        settled: list[int] = []
        self._due = None
        distances = self._graph.nearest_roots((EDITABLE,), self._open, self._budget).distance
        for node in self._open:
            distance = distances.get(node)
            if distance is None:
                continue
            if distance <= self._level or self._all_seen:
                settled.append(node)
            elif self._due is None or distance < self._due:
                self._due = distance
        self._open.difference_update(settled)
        return bool(settled)

    def _all_have_worse(self) -> bool:
        if not any(self._graph.roots.get(rank) for rank in RANKS):
            return False
        if self._open <= self._graph.nearest_roots((EDITABLE,), self._open, self._budget).distance.keys():
            return True
        return self._open <= self._graph.nearest_roots(RANKS, self._open, self._budget).distance.keys()

    def above(self, target: int) -> Collection[int]:
        """Return the ids of the objects met from which a target can be reached, itself included."""
        return self._graph.above([target])

    def explained(self, ranks: Collection[int], remember: Remember | None = None) -> dict[int, Explanation]:
        """Return, by id, explanations of the targets that a root of these ranks leads to. For `remember` see `explain`."""
        if not any(self._graph.roots.get(rank) for rank in ranks):
            return {}
        answers = self.answers()
        if remember is not None:
            for root, value in answers.roots():
                remember(root, value)
        found = answers.by_target.items()
        return {node: Explanation(one.holder, one.pattern) for node, one in found if one.root.rank in ranks}

    def explanations(
        self,
        remember: Remember | None = None,
        others: Mapping[Culprit, tuple[Holder, ...]] = MappingProxyType({}),
        groups: Mapping[int, int] = MappingProxyType({}),
    ) -> list[Explanation]:
        """Return one explanation a target, in the given order. For `remember` and `groups` see `explain`."""
        answers = self.answers()
        if remember is not None:
            for root, value in answers.roots():
                remember(root, value)
        written: dict[int, Explanation] = {}
        rootless = [node for node in dict.fromkeys(self._order) if node not in answers.by_target]
        found = self._rootless(rootless)
        for node in dict.fromkeys(self._order):
            if node in answers.by_target:
                _, holder, pattern, _ = answers.by_target[node]
            else:
                holder = found[node]
                pattern = pattern_of(holder.text)
            further = others.get((holder.kind, holder.root, groups.get(node, 0)), ())
            written[node] = Explanation(holder, pattern, further)
        return [written[node] for node in self._order]

    def answers(self) -> Answers:
        """Return the answers for the targets that a root leads to. Call it after `run`; they are written once."""
        if self._answers is None:
            self._answers = Answers(self._graph, self._order, Writer(self.native.known), self._steps_to_write())
        return self._answers

    def rings(self) -> dict[int, Holder]:
        """Return, by target's id, the rings through C++ that keep targets without a root alive."""
        kept = self.native.kept_by_rings().difference(self.answers().by_target)
        found = self._rootless([node for node in dict.fromkeys(self._order) if node in kept])
        return {node: holder for node, holder in found.items() if holder.root == RING_ROOT}

    def _steps_to_write(self) -> Budget:
        return Budget(max(0, self._budget.left) + WRITING_STEPS, self._budget)

    def _rootless(self, targets: Sequence[int]) -> dict[int, Holder]:
        if not targets:
            return {}
        writer, budget = Writer(self.native.known), self._steps_to_write()
        rootless = Rootless(self._graph, self.native, writer, budget, exhausted=self._exhausted, exact=self._exact)
        return rootless.holders(targets)


Culprit: TypeAlias = "tuple[str, str, int]"
"""Kind and root of an array's first holder, and the group of the array: see `explain.explain`."""


@dataclass(frozen=True)
class Explanation:
    """Who holds one target: the best root with the shortest path from it, else of kind ``native`` or ``unknown``.

    `pattern` is the path without indices and addresses; `others` would keep it if the first holder let go.
    """

    holder: Holder
    pattern: str
    others: tuple[Holder, ...] = ()
