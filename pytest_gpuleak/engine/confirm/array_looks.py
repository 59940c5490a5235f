"""Look at the arrays that the runs of one suspect have left: which of them are alive, and who holds them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.arrays import array_types, find_arrays
from pytest_gpuleak.engine.confirm.holder_search import count_users, find_left, search_holders
from pytest_gpuleak.engine.stages import EXPLAIN, RECOGNISE
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.collector import collect, get_objects
from pytest_gpuleak.heap.referrers import PausedCollector
from pytest_gpuleak.model.findings import FREED, NO_OBJECT, WAITING, Holder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.adapters.protocol import ArrayFramework, OriginLog
    from pytest_gpuleak.engine.confirm.left_arrays import LeftArrays
    from pytest_gpuleak.engine.confirm.recognition import Recognition
    from pytest_gpuleak.engine.confirm.retained_graphs import RetainedGraphs
    from pytest_gpuleak.engine.confirm.survivors import Leftover, Survivors
    from pytest_gpuleak.engine.detect.detector import Detector
    from pytest_gpuleak.engine.stages import Stage
    from pytest_gpuleak.explain.explanation import Explanation
    from pytest_gpuleak.explain.known_culprits import Culprits

EXPLAIN_STEPS = 80_000_000
"""Steps (`heap.budget`) of all searches for the holders of one test's arrays, re-runs included."""

NOT_SEARCHED = "not searched for, since no report is written and notes are not shown (-v)"
"""Why the holder of a note is unknown."""


class ArrayLooks:
    """Looks at what is `left`, after each re-run, and notes it with the `survivors` and the `graphs`.

    `changed` is called before each note: what was judged before no longer holds.
    """

    def __init__(
        self,
        left: LeftArrays,
        survivors: Survivors,
        recognition: Recognition,
        graphs: RetainedGraphs,
        detector: Detector,
        arrays: Sequence[ArrayFramework],
        frameworks: Frameworks,
        culprits: Callable[[], Culprits] | None,
        guard: Callable[[Stage], AbstractContextManager[Any]],
        changed: Callable[[], None],
    ) -> None:
        self._left = left
        self._survivors = survivors
        self._recognition = recognition
        self._graphs = graphs
        self._detector = detector
        self._arrays = arrays
        self._frameworks = frameworks
        self._culprits = culprits
        self._guard = guard
        self._changed = changed
        self._postponed: tuple[OriginLog, set[int]] | None = None  # lines and shared storages, for a late search
        self._budget = Budget(EXPLAIN_STEPS)
        self.alive: list[frozenset[int]] = []
        """The indices of the survivors that were alive at each look."""
        self.searches = 0
        """Searches of the whole heap so far."""
        self.collected = False
        """Whether the heap was collected since the last run."""

    def look(self, origins: OriginLog | None = None) -> None:
        """Note, after each run, which arrays are alive and who holds them; `origins` are the lines noted in a re-run."""
        looks = len(self.alive)
        with self._guard(EXPLAIN) as stage:
            if not self._left.by_id:
                self._note([], set(), {})
            elif self._recognised_where_they_are():
                self._look_at_recognised(origins or {})
            else:
                young = self._young()
                with self._detector.whole_heap(), PausedCollector():
                    self._look(origins or {}, young)
        if len(self.alive) == looks:
            self._note_unexplained(self._left.living(), _unknown(f"the search failed: {stage.fault}"), origins or {})

    def look_briefly(self, origins: OriginLog | None = None) -> None:
        """Like `look`, but ask the weak handles alone: no holder is searched for."""
        self._note_unexplained(self._left.living(), _unknown(NOT_SEARCHED), origins or {})

    def look_without_search(self, origins: OriginLog | None = None) -> None:
        """Like `look`, but leave the search to a later one for many suspects, which calls `take_holders`."""
        self._postponed = origins or {}, self._look_at_heap(WAITING, origins or {})

    def look_at_shared(self, origins: OriginLog | None = None) -> None:
        """Like `look_briefly`, but ask the heap which of the arrays that share a storage with older ones are alive."""
        self._look_at_heap(_unknown(NOT_SEARCHED), origins or {})

    def forget_last(self) -> None:
        """Forget the last look after a re-run, which another is to follow."""
        del self.alive[max(self._left.runs - 2, 0) :]
        self._changed()
        self._postponed = None

    def forget_all(self) -> None:
        """Forget all looks, because a re-run could not be recorded to its end."""
        self._changed()
        self._postponed = None
        self.alive.clear()

    @property
    def recognised(self) -> bool:
        """Whether known holders alone hold all that is alive."""
        return self._recognition.covers(self._left.living())

    @property
    def waits(self) -> bool:
        """Whether the holders of what is alive are still to be searched for, with those of other suspects."""
        return self._postponed is not None

    @property
    def confirmed(self) -> bool:
        """Whether a re-run has been examined."""
        return bool(self.alive)

    def take_holders(self, arrays: Sequence[object], found: Sequence[Explanation], budget: Budget) -> None:
        """Take what a later search has `found` on the living `arrays` that were left; `budget` limits the graphs."""
        if self._postponed is None:
            return
        origins, shared = self._postponed
        self._changed()
        self._postponed = None
        newest = self._left.runs - 1
        self._graphs.note(arrays, found, self._left.readings(), budget)
        explained = [(self._left.by_id[id(array)], why) for array, why in zip(arrays, found, strict=True)]
        self._survivors.note(explained, shared, origins, newest)
        living = self._left.living()
        for unknown, ids in (
            (NO_OBJECT, living.difference(map(id, arrays))),
            (FREED, self._left.by_id.keys() - living),
        ):
            self._survivors.note_unexplained([self._left.by_id[i] for i in ids], unknown, {}, newest)

    def give_up(self, why: str) -> None:
        """Say `why` a later search has found nothing."""
        self._changed()
        self._postponed = None
        self._survivors.note_unexplained(self._left.by_id.values(), _unknown(why), {}, self._left.runs - 1)

    def _recognised_where_they_are(self) -> bool:
        """Tell whether all arrays are recognised, each at the place where it still is."""
        living = self._left.living()
        if not living:  # no storage is, but `swap_tensors` gives the array that stays another: the handle knows the old
            return False
        if not self._recognition.covers(living):
            with self._guard(RECOGNISE):
                self._recognition.recognise_of_all_runs(*self._left.living_by_age())
            if not self._recognition.covers(living):
                return False
        if not self._recognition.one_place_holds_two_runs(self._left.by_id):
            return True
        if not self.collected:
            with self._detector.whole_heap():
                collect(2)
        return not self._recognition.has_outdated_place(self._left.by_id)

    def _look_at_recognised(self, origins: OriginLog) -> None:
        found = self._recognition.found
        living, shared = self._living_and_shared({i: found[i].users for i in self._left.living()})
        alive = [(self._left.by_id[identity], found[identity]) for identity in living]
        self._note([(left, recognised.explanation) for left, recognised in alive], shared, origins)

    def _living_and_shared(self, users: Mapping[int, int | None]) -> tuple[set[int], set[int]]:
        """Return the ids of the arrays that are alive, and the storages that other arrays use too.

        A handle tells whether the storage lives. Of arrays that use one with others, only the heap tells which are alive: it
        is walked unless `users`, the number of arrays that share each one's storage, rule that out.
        """
        living, left = self._left.living(), self._left.by_id
        ours = Counter(left[identity].reading.storage for identity in living)
        of_runs = {(left[identity].run, left[identity].reading.storage) for identity in living}
        counts = ((users.get(identity), ours[left[identity].reading.storage]) for identity in living)
        if len(of_runs) == len(ours) and all(count is not None and count <= own for count, own in counts):
            return living, set()
        young = self._young()
        with self._detector.whole_heap():
            targets, shared = find_left(self._left, young, self._arrays, self._frameworks)
            living &= set(map(id, targets))
            targets.clear()
        return living, shared

    def _look_at_heap(self, unknown: Holder, origins: OriginLog) -> set[int]:
        living, shared = self._left.living(), set[int]()
        with self._guard(EXPLAIN):
            users = count_users(self._left.objects(living), self._arrays)
            if others := living - users.keys():
                users |= count_users(find_arrays(others, get_objects(), array_types(self._arrays)), self._arrays)
            living, shared = self._living_and_shared(users)
        self._note_unexplained(living, unknown, origins, shared)
        return shared

    def _young(self) -> set[int]:
        """Return the ids of the arrays that were made since the last run began. No such array is of an earlier run."""
        return set(map(id, self._detector.look()))

    def _look(self, origins: OriginLog, young: set[int]) -> None:
        from pytest_gpuleak.explain.search import SEARCH_STEPS

        self.searches += 1
        targets, shared = find_left(self._left, young, self._arrays, self._frameworks)
        # The largest arrays are shown, and in a crowd only the first paths are written in full.
        targets.sort(key=lambda target: -self._left.by_id[id(target)].reading.storage_bytes)
        culprits = None if self._culprits is None else self._culprits()
        explanations = search_holders(targets, culprits, self._frameworks, self._budget.part(SEARCH_STEPS))
        found = [(self._left.by_id[id(target)], why) for target, why in zip(targets, explanations, strict=True)]
        self._graphs.note(targets, explanations, self._left.readings())
        targets.clear()
        self._note(found, shared, origins)

    def _note(self, found: Sequence[tuple[Leftover, Explanation]], shared: set[int], origins: OriginLog) -> None:
        self._changed()
        self._postponed = None
        self.alive.append(self._survivors.note(found, shared, origins, self._left.runs - 1))

    def _note_unexplained(
        self, living: Collection[int], unknown: Holder, origins: OriginLog, shared: Collection[int] = ()
    ) -> None:
        self._changed()
        self._postponed = None
        alive = [self._left.by_id[identity] for identity in living]
        self.alive.append(self._survivors.note_unexplained(alive, unknown, origins, self._left.runs - 1, shared))


def _unknown(why: str) -> Holder:
    return Holder("unknown", "", f"unknown: {why}")
