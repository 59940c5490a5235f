"""Recognise what known holders, or the user's globals, alone hold: no search of the heap and no collection is needed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.arrays import framework_of
from pytest_gpuleak.adapters.bulk import hold_arrays
from pytest_gpuleak.heap.hidden_references import RING_ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.adapters.protocol import ArrayFramework, StorageHandle
    from pytest_gpuleak.engine.confirm.survivors import Leftover
    from pytest_gpuleak.engine.detect.detector import Detector
    from pytest_gpuleak.explain.explanation import Explanation
    from pytest_gpuleak.explain.known_culprits import Culprits
    from pytest_gpuleak.model.findings import Holder

MOST_ARRAYS: Final = 1000
"""Arrays that are recognised after collections: of more, a search explains a sample."""


@dataclasses.dataclass(frozen=True)
class Recognised:
    """An array that only known holders hold, its handle, and how many arrays share its storage (None: unknown)."""

    explanation: Explanation
    handle: StorageHandle
    users: int | None


class Recognition:
    """The arrays of one suspect that are recognised. Holds ids, plain data and weak handles, no array.

    `culprits` gives what held leaked arrays before; None to recognise nothing. `note` is called with the arrays and their
    explanations, of which it must not keep the arrays.
    """

    def __init__(
        self,
        detector: Detector,
        frameworks: Sequence[ArrayFramework],
        natives: Frameworks,
        culprits: Callable[[], Culprits] | None,
        note: Callable[[Sequence[object], Sequence[Explanation]], None],
    ) -> None:
        self._detector = detector
        self._frameworks = frameworks
        self._natives = natives
        self._culprits = culprits
        self._note = note
        self.found: dict[int, Recognised] = {}
        self.met: set[int] = set()
        """Ids of arrays that got their Python object when the last search read them."""
        self.born: set[int] = set()
        """Ids of what the runs have made, up to the last but one."""
        self._reached: set[int] = set()
        self._in_vain = False

    def note_born(self) -> None:
        """Note what a run has made, before another begins."""
        self.born |= self._detector.born()
        self._reached.clear()  # the run may replace it

    def covers(self, left: Collection[int]) -> bool:
        """Tell whether all these arrays are recognised."""
        return all(identity in self.found for identity in left)

    def needs_no_collection(self, living: Collection[int]) -> bool:
        """Tell whether roots that outlive the tests led to all these arrays after the last run: then none is garbage."""
        return self._reached.issuperset(living)

    def try_again(self) -> None:
        """Recognise again what is left: some of it was garbage, and is gone."""
        self._in_vain = False

    def keep_only(self, left: Collection[int]) -> None:
        """Forget the others."""
        self.found = {identity: one for identity, one in self.found.items() if identity in left}

    def recognise(self, alive: set[int], older: Collection[int] = ()) -> bool:
        """Tell whether known culprits or the user's globals alone hold all that is alive, and what earlier runs left."""
        if self._culprits is None or not alive or not self._detector.sees_only_young:
            return False
        return self._recognise(alive, older)

    def recognise_of_all_runs(self, alive: set[int], older: Collection[int]) -> bool:
        """Like `recognise`, after collections and among what earlier runs made too, for one walk over the heap.

        Not tried where nothing is known yet, of crowds, and again: a search of the whole heap is to come all the same.
        """
        if self._culprits is None or self._in_vain or len(alive) + len(older) > MOST_ARRAYS:
            return False
        found = self._culprits().knows_any and self._detector.rejoin(self.born) and self._recognise(alive, older)
        self._in_vain = not found
        return found

    def _recognise(self, alive: set[int], older: Collection[int]) -> bool:
        assert self._culprits is not None
        young = self._detector.look()
        before = set(map(id, young))
        arrays = [array for array in young if id(array) in alive]
        young.clear()
        found = None
        if len(arrays) == len(alive):
            found = self._culprits().recognise(
                arrays, {id(arrays)}, self._natives.reference_finders(), older, self._reached
            )
        # What the counters show of these is still to be explained: no look at the run has seen them.
        self.met |= {id(array) for array in self._detector.look()} - before
        if found is None:
            self._in_vain = self._in_vain or bool(self._reached)  # who else holds it would be unknown again
            return False
        handles = hold_arrays(arrays, self._frameworks)
        for array, explanation in zip(arrays, found, strict=True):
            users = framework_of(array, self._frameworks).storage_users(array)
            self.found[id(array)] = Recognised(explanation, handles[id(array)], users)
        self._note(arrays, found)
        return True

    def one_place_holds_two_runs(self, left: Mapping[int, Leftover]) -> bool:
        """Tell whether arrays of two runs are alive that were found at the same place, such as one attribute.

        The place was then given a new value, and the old value may wait in a cycle, because known holders are
        recognised without a collection of the whole heap: an exception kept with its frame would seem to grow.
        """
        return bool(self._places_of_two_runs(left))

    def has_outdated_place(self, left: Mapping[int, Leftover]) -> bool:
        """Tell, after a collection, whether a place can no longer be where an earlier run's array is.

        An attribute has one value, and so has a key: the older array is held by another way since, ``LAST.value`` has
        become ``LAST.previous.value``. Items of a set, cached results and keys of one class are written alike.
        """
        return any(all(_names_one(step.edge) for step in holder.path) for holder in self._places_of_two_runs(left))

    def _places_of_two_runs(self, left: Mapping[int, Leftover]) -> list[Holder]:
        runs: dict[str, int] = {}
        found = []
        for identity, one in left.items():
            recognised = self.found.get(identity)
            if recognised is None:  # it died before it could be recognised
                continue
            holder = recognised.explanation.holder
            if holder.root == RING_ROOT:  # no place: each run makes a ring of its own
                continue
            if recognised.handle.alive() and runs.setdefault(holder.text, one.run) != one.run:
                found.append(holder)
        return found


def _names_one(edge: str) -> bool:
    return edge.startswith((".", "[")) and "(" not in edge and "<" not in edge
