"""Name who holds what one suspect's runs left: by a walk down from lasting roots, or by a search of the heap."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.arrays import array_types, select_arrays
from pytest_gpuleak.adapters.bulk import memory_of_arrays, storages_of
from pytest_gpuleak.adapters.storages import is_storage
from pytest_gpuleak.engine.describe import SEARCH_CUT
from pytest_gpuleak.engine.limits import GRAPHS_STEPS, MOST_ASKED, MOST_SOUGHT, SEARCH_STEPS, STEPS_A_TEST
from pytest_gpuleak.engine.stages import EXPLAIN, GRAPHS, RECOGNISE
from pytest_gpuleak.engine.survivors import Found
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.collector import PausedCollector, get_objects
from pytest_gpuleak.model.evidence import Root, root_of
from pytest_gpuleak.model.findings import CYCLE_ROOT, FREED, NO_OBJECT, NOT_READ, WAITING, Holder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

    from pytest_gpuleak.engine.deaths import Left
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.runs import Runs
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.engine.stages import Guard, Stage
    from pytest_gpuleak.explain.search import Explanation
    from pytest_gpuleak.model.findings import Autograd

NOT_SEARCHED = Holder(
    "unknown", "", "unknown: not searched for, since no report is written and notes are not shown (-v)"
)
"""The holder of a note that no report shows."""


class Holders:
    """The holders of what the `runs` of one suspect left. Keeps plain data, no array."""

    def __init__(
        self, tracker: RunTracker, knowledge: SessionKnowledge, runs: Runs, guard: Callable[[Stage], Guard]
    ) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self.runs = runs
        self._guard = guard
        self._known: dict[int, Explanation] = {}  # by the survivor's index, at the time of the verdict
        self._walked = False  # whether a walk down was made: where it has met none, the next one would not either
        self._in_vain = False  # whether a search up has not led to all
        self.graphs: dict[Root, Autograd] = {}
        """What the autograd graphs behind each root retain."""
        self.waits = False
        """Whether the holders are still to be searched for, with those of other suspects."""
        self.searched = False
        """Whether the heap was searched for them."""
        self.search_cut = ""
        """Where the search stopped before its end; empty where it did not."""

    def name(self, wanted: Sequence[Left], fixtures: Sequence[object]) -> None:
        """Name those of the `wanted` that have no name yet, and that lasting roots lead down to: it takes milliseconds."""
        wanted = [left for left in wanted if left.index not in self._known]
        if self._can_walk(wanted) and (self._known or not self._walked):
            self._reach(wanted, fixtures, [])

    def are_held(self, wanted: Sequence[Left], fixtures: Sequence[object], older: Sequence[Left]) -> bool:
        """Tell whether lasting roots lead to the `wanted` and the `older` arrays, so that none is garbage; name the `wanted`.

        `fixtures` are pytest's definitions of wider fixtures. A collection of the heap takes longer than a walk down from the
        roots that are known, and than a search up from the few arrays that it has not met.
        """
        if not self._can_walk(wanted):
            return False
        unmet = list(older)
        met = self._reach(wanted, fixtures, unmet)
        return met or (len(wanted) + len(unmet) <= MOST_SOUGHT and self._reach_up(wanted, unmet))

    def _can_walk(self, wanted: Sequence[Left]) -> bool:
        return 0 < len(wanted) <= MOST_ASKED and self._tracker.detector.hides_older

    def _reach(self, wanted: Sequence[Left], fixtures: Sequence[object], older: list[Left]) -> bool:
        """Name the `wanted` by a walk down; leave of the `older` what that has not met, and tell whether it has met all."""
        with self._guard(RECOGNISE):
            arrays = self.runs.objects(wanted)
            hidden = {left.held.reading.identity for left in wanted}.difference(map(id, arrays))
            by_id = {left.held.reading.identity: left for left in older}
            finders = self._tracker.frameworks.reference_finders()
            found = self._knowledge.roots.reach(arrays, finders, fixtures, hidden, by_id.keys())
            met = self._real(found.older, by_id)
            found.older.clear()
            older[:] = [left for left in older if left.held.reading.identity not in met]
            self._walked = True
            return self._take_reached(wanted, arrays, found.explanations) and not older
        return False

    def _reach_up(self, wanted: Sequence[Left], older: Sequence[Left]) -> bool:
        """Name the `wanted` by a search up; tell whether lasting roots lead to all of them, and to the `older` arrays.

        Once: what it has not led to, and older arrays that none has led to (what C++ holds), are left to other ways.
        """
        unmet = self._knowledge.unmet
        if self._in_vain or any(one.held.handle.storage in unmet for one in older):
            return False
        self._in_vain = True
        with self._guard(RECOGNISE):
            arrays = self.runs.objects([*wanted, *older], hidden=True)
            with self._tracker.detector.whole_heap():
                found = self._knowledge.roots.reach_up(arrays)
            self._in_vain = not self._take_reached(wanted, arrays, found, older)
            unmet |= {one.held.handle.storage for one in older if one.held.reading.identity not in found}
        return not self._in_vain

    def _take_reached(
        self, wanted: Sequence[Left], arrays: list[object], found: Mapping[int, Explanation], older: Sequence[Left] = ()
    ) -> bool:
        """Name the `wanted` as `found`, by the ids of arrays; tell whether these are all, and the `older` with them."""
        by_id = {left.held.reading.identity: left for left in (*older, *wanted)}
        real = self._real(arrays, by_id) & found.keys()
        for left in wanted:
            if left.held.reading.identity in real:
                self._known.setdefault(left.index, found[left.held.reading.identity])
        arrays.clear()
        return len(real) == len(by_id)

    def _real(self, objects: list[object], by_id: Mapping[int, Left]) -> set[int]:
        """Return the ids of those that are these arrays: one that was told by its id may be gone, and another object have it."""
        arrays = select_arrays(objects, array_types(self._tracker.guarded_arrays))
        keys = storages_of(arrays, self._tracker.guarded_arrays)
        return {identity for identity, key in keys.items() if by_id[identity].is_at(identity, key)}

    def count_graphs(self) -> None:
        """Count what the autograd graphs behind the first run's arrays retain: counters see it too."""
        with self._guard(GRAPHS), PausedCollector():
            first = [left for left in self.runs.living() if left.run == 0]
            devices = {left.held.reading.identity: left.held.reading.device for left in first}
            arrays = self.runs.objects(first, hidden=True)
            self._count((array, root_of(devices[id(array)], None)) for array in arrays)

    def search(self) -> None:
        """Search the heap for the holders of all that is alive, now."""
        self.searched = True
        with self._guard(EXPLAIN) as stage:
            search_together([self], self._tracker, self._knowledge)
            return
        self.give_up(f"the search failed: {stage.fault}")

    def wait(self, *, named: bool) -> None:
        """Leave the search to a later one for many suspects, unless names are of no use to a reader."""
        self.waits = named
        self._note_known(WAITING if named else NOT_SEARCHED)

    def still(self, left: Left, found: Explanation) -> Explanation:
        """Return what a search has `found`, or the name from the verdict where that is a cycle alone.

        A later test may let go of what held the memory, which then waits in it for the collector.
        """
        return self._known.get(left.index, found) if found.holder.root == CYCLE_ROOT else found

    def take(self, found: Sequence[tuple[Left, Explanation]], shared: set[int]) -> None:
        """Take what a search has `found` on what is alive; `shared` are the storages that others use too."""
        self.waits = False
        survivors = self.runs.survivors
        named = survivors.note((Found(one.index, one.held.reading, why) for one, why in found), shared)
        rest = [left for left in self.runs.every() if left.index not in named]
        self._note_known(FREED, [left for left in rest if left.cause is not None])
        survivors.note_unexplained((one.index for one in rest if one.cause is None), NO_OBJECT)

    def note_reached(self) -> bool:
        """Name what the last run left and a walk has reached, beside what was named before; tell whether that is all."""
        last = self.runs.living(of_last=True)
        reached = [left for left in last if left.index in self._known]
        if reached:
            self._add_others(reached)
            self._note_known(NOT_SEARCHED, reached)
        # A backward pass adds to the gradients that are there: the traced run leaves none of its own.
        self.runs.survivors.note_backward()
        return len(reached) == len(last)

    def _add_others(self, reached: Iterable[Left]) -> None:
        """Add the further holders that a search has named beside the same root: a walk names one."""
        searched = {one.root: one.others for one in self.runs.survivors.all() if one.others}
        for left in reached:
            found = self._known[left.index]
            others = searched.get(root_of(left.held.reading.device, found.holder), ())
            if others and not found.others:
                self._known[left.index] = dataclasses.replace(found, others=others)

    def note_leftovers(self, nodeid: str, extra: Collection[int] = (), garbage: Collection[int] = ()) -> None:
        """Note for the session what is still alive, with the text of its holder where it is known.

        `extra` are the indices of survivors that are there because of the re-runs, `garbage` of those that are none. What was
        noted before stays as noted.
        """
        survivors = self.runs.survivors.all()
        for left in (left for left in self.runs.staying() if left.index not in garbage):
            holder = survivors[left.index].holder
            text = "" if holder is None or holder.kind == "unknown" else holder.text
            again = left.run > 0
            self._knowledge.left_behind.note(nodeid, left.held, text, of_rerun=again, extra=left.index in extra)

    def give_up(self, why: str) -> None:
        """Say `why` a search has found nothing."""
        self.waits = False
        self._note_known(Holder("unknown", "", f"unknown: {why}"))

    def _note_known(self, unknown: Holder, among: Iterable[Left] | None = None) -> None:
        known, lefts = self._known, list(self.runs.every() if among is None else among)
        named = (Found(one.index, one.held.reading, known[one.index]) for one in lefts if one.index in known)
        self.runs.survivors.note(named)
        self.runs.survivors.note_unexplained((one.index for one in lefts if one.index not in known), unknown)

    def count_graphs_of(self, arrays: Iterable[object], found: Iterable[tuple[Left, Explanation]]) -> None:
        """Count what the graphs behind the arrays of the first run retain, by the roots that a search has found."""
        with self._guard(GRAPHS):
            rooted = [
                (one, root_of(by.held.reading.device, why.holder), by.run)
                for one, (by, why) in zip(arrays, found, strict=True)
            ]
            rooted.sort(key=lambda one: one[2])  # the first run's graphs are counted before the bound is met
            of_first = {root for _, root, run in rooted if run == 0}
            # A later run's graph may be all that keeps what the first has left (a hidden state that nobody detaches).
            self._count((one, root) for one, root, run in rooted if run == 0 or root not in of_first)
            rooted.clear()
            self.graphs = {
                root: size if root in of_first else dataclasses.replace(size, saved_tensors=0, saved_bytes=0)
                for root, size in self.graphs.items()
            }

    def _count(self, rooted: Iterable[tuple[object, Root]]) -> None:
        members: dict[Root, list[object]] = defaultdict(list)
        for array, root in rooted:
            members[root].append(array)
        # Should the count fail, nothing is known of any of them.
        self.graphs = dict.fromkeys(members, NOT_READ)
        budget = Budget(GRAPHS_STEPS)
        counted = {root: self._tracker.frameworks.graph_size(arrays, budget) for root, arrays in members.items()}
        self.graphs = {root: retained for root, retained in counted.items() if retained is not None}


def shared_storages(found: Sequence[object], targets: Sequence[object], tracker: RunTracker) -> set[int]:
    """Return the storages that other visible arrays than the `targets` use, of all arrays `found`."""
    ours, storages = set(map(id, targets)), array_types(tracker.frameworks.storages)
    # A storage object owns nothing but itself.
    others = [array for array in found if id(array) not in ours and not is_storage(array, storages)]
    # Reading an autograd graph creates Python objects for its tensors: these are no other users.
    alone: Container[int] = {
        one for finder in tracker.frameworks.reference_finders() for one in finder.held_alone(others)
    }
    others = [one for one in others if id(one) not in alone]
    shared = set(storages_of(others, tracker.guarded_arrays).values())
    return shared | _borrowed_storages(targets, others, tracker)


def _borrowed_storages(targets: Iterable[object], others: Iterable[object], tracker: RunTracker) -> set[int]:
    """Return the storages of the `targets` over memory of the `others`, or of arrays older than the test that none tracks.

    They are those of `torch.from_numpy` and of DLPack.
    """
    known = tracker.guarded_arrays
    borrowed = {id(array): memory for array, memory in memory_of_arrays(targets, known) if memory.borrowed}
    if not borrowed:
        return set()
    lent = [*(memory for _, memory in memory_of_arrays(others, known)), *tracker.untracked.ranges()]
    storages = storages_of((array for array in targets if id(array) in borrowed), known)
    return {
        storages[identity]
        for identity, memory in borrowed.items()
        if any(one.start <= memory.start and memory.start + memory.size <= one.start + one.size for one in lent)
    }


def search_together(suspects: Sequence[Holders], tracker: RunTracker, knowledge: SessionKnowledge) -> None:
    """Search the heap once for the holders of all that is alive of these suspects, and remember the roots."""
    from pytest_gpuleak.explain.explain import explain_crowd

    with tracker.detector.whole_heap(), PausedCollector():
        found = select_arrays(get_objects(), array_types(tracker.guarded_arrays))
        wanted: dict[int, list[tuple[int, Left]]] = defaultdict(list)
        for number, one in enumerate(suspects):
            for left in one.runs.living():
                wanted[left.held.reading.identity].append((number, left))
        keys = storages_of((array for array in found if id(array) in wanted), tracker.guarded_arrays)
        targets: list[object] = []
        members: list[dict[int, Left]] = [{} for _ in suspects]
        for array in found:
            # The first of a test's: a later array may have the id of one that died, and have been left too.
            owners = {
                number: left
                for number, left in reversed(wanted.get(id(array), ()))
                if left.is_at(id(array), keys[id(array)])
            }
            for number, left in owners.items():
                members[number][len(targets)] = left
            if owners:
                targets.append(array)
        array = None
        shared = shared_storages(found, targets, tracker)
        found.clear()
        groups = {id(targets[place]): number for number, places in enumerate(members) for place in places}
        budget = Budget(SEARCH_STEPS + STEPS_A_TEST * len(set(groups.values())))
        explanations: Sequence[Explanation] = ()
        if targets:
            explanations = explain_crowd(
                targets,
                ignore={id(targets)},
                remember=knowledge.roots.remember,
                budget=budget,
                frameworks=tracker.frameworks.reference_finders(),
                groups=groups,
            )
        for one, places in zip(suspects, members, strict=True):
            one.search_cut = SEARCH_CUT if budget.spent else ""
            explained = [(left, one.still(left, explanations[place])) for place, left in places.items()]
            one.count_graphs_of((targets[place] for place in places), explained)
            one.take(explained, shared)
        targets.clear()
