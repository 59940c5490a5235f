"""Find who holds the untracked arrays whose memory a suspect's arrays use: NumPy's behind `torch.from_numpy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.arrays import array_types, framework_of, select_arrays
from pytest_gpuleak.adapters.bulk import memory_of_arrays
from pytest_gpuleak.engine.limits import LEAST_ASKED, MOST_ASKED, MOST_LENDER_SEARCHES
from pytest_gpuleak.engine.stages import EXPLAIN
from pytest_gpuleak.heap.collector import get_objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuleak.adapters.protocol import ArrayFramework
    from pytest_gpuleak.engine.subject import Suspect
    from pytest_gpuleak.model.evidence import Evidence
    from pytest_gpuleak.model.findings import Holder
    from pytest_gpuleak.model.readings import MemoryRange


class Lenders:
    """Note which arrays use another library's memory, and find the `holders` of what lends it, by the memory's key."""

    def __init__(self, suspect: Suspect) -> None:
        self.holders: dict[int, Holder] = {}
        self._suspect = suspect
        self._borrowed: dict[int, int] = {}

    def note_borrowed(self, arrays: Sequence[object]) -> None:
        """Note which of the arrays that a run has left use another library's memory, if it may have left what lends it.

        What `torch.load` reads looks borrowed too, of nobody in Python.
        """
        if not self._suspect.tracker.may_have_added_arrays:
            return
        with self._suspect.guard(EXPLAIN):
            known = self._suspect.tracker.frameworks.arrays
            for array, memory in memory_of_arrays(arrays[:MOST_ASKED], known):
                if memory.borrowed:
                    self._borrowed[memory.start] = framework_of(array, known).storage(array)

    def find(self, evidence: Evidence) -> None:
        """Find the lenders of what is alive, for the first `MOST_LENDER_SEARCHES` tests of the session that borrow."""
        alive = {survivor.reading.storage for survivor in evidence.survivors}
        places = {place: storage for place, storage in self._borrowed.items() if storage in alive}
        if places and self._suspect.knowledge.lender_searches < MOST_LENDER_SEARCHES:
            self._suspect.knowledge.lender_searches += 1
            with self._suspect.guard(EXPLAIN):
                self._search(places)

    def _search(self, places: dict[int, int]) -> None:
        from pytest_gpuleak.explain.untracked_arrays import HeapArrays, explain_arrays
        from pytest_gpuleak.heap.collector import PausedCollector

        frameworks = self._suspect.tracker.frameworks
        with self._suspect.tracker.detector.whole_heap(), PausedCollector():
            heap = HeapArrays(array_types(frameworks.arrays))
            arrays, _ = heap.find(lambda _, size: size >= LEAST_ASKED)
            arrays[:] = [array for array in arrays if has_any(heap.reader.memory(array), places)]
            why = explain_arrays(arrays, (), frameworks.reference_finders())
            for array in arrays:
                memory, holder = heap.reader.memory(array), why[id(array)].holder
                if holder.named:
                    self.holders |= {storage: holder for at, storage in places.items() if has_any(memory, (at,))}
            arrays.clear()


def has_any(memory: MemoryRange, places: Iterable[int]) -> bool:
    """Tell whether any of the addresses lies within the memory."""
    return any(memory.start <= start < memory.start + memory.size for start in places)


def starts_of_memory(frameworks: Sequence[ArrayFramework]) -> list[int]:
    """Return where the memory begins that the visible arrays of the frameworks use."""
    arrays = select_arrays(get_objects(), array_types(frameworks))
    return [memory.start for _, memory in memory_of_arrays(arrays, frameworks)]
