"""Find the arrays of a suspect that the collector does not track: NumPy's. The heap's counter is what suspects them.

A suspect whose heap grows in two runs is run once more between two walks over the heap, each after a full collection: the
arrays that are new then, and replace none of the same size, grow. That run is traced for the lines that create them. Where
only the first run grew, a single walk finds arrays of the size of that growth. A walk that was cut tells nothing: what
grew is a note then, which says so. Other libraries' arrays may use the memory of NumPy's (`torch.from_numpy`): their lenders
are told from theirs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.arrays import array_types, framework_of, select_arrays
from pytest_gpuleak.adapters.bulk import memory_of_arrays
from pytest_gpuleak.adapters.registry import may_have_untracked_arrays
from pytest_gpuleak.engine.host_walks import HeapSince, Residue, TracedLines
from pytest_gpuleak.engine.judge.untracked import UntrackedRuns, added_by_record, judge_cut, judge_untracked
from pytest_gpuleak.engine.limits import LEAST_ASKED, MOST_ASKED, MOST_LENDER_SEARCHES
from pytest_gpuleak.engine.stages import EXPLAIN
from pytest_gpuleak.engine.survivors import Survivors
from pytest_gpuleak.heap.collector import PausedCollector, calling, collect, get_objects
from pytest_gpuleak.model.evidence import Survivor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.protocol import ArrayFramework
    from pytest_gpuleak.adapters.untracked import MetArrays
    from pytest_gpuleak.engine.subject import Suspect
    from pytest_gpuleak.explain.untracked_arrays import HeapArrays
    from pytest_gpuleak.model.evidence import Evidence
    from pytest_gpuleak.model.findings import Finding, Holder
    from pytest_gpuleak.model.readings import ArrayReading, Growth, MemoryRange
    from pytest_gpuleak.model.source_files import Origin


class HostArrays:
    """Collect what each run of a suspect added to the heap, and the arrays behind it."""

    def __init__(self, suspect: Suspect) -> None:
        self._suspect = suspect
        self._grown: list[int] = []
        self._added: list[bool] = []
        self._before: MetArrays | None = None  # when the recorded run began
        self._recorded = False
        self._last: MetArrays | None = None
        self._cut = False
        self._lines = TracedLines(suspect.knowledge.is_user_file)
        self._origins: dict[int, Origin] = {}
        self._born: set[int] = set()
        self._growth: Growth | None = None
        self._replaced = 0
        self._is_anew = False
        """Whether the first run that counts is a re-run: what it has left goes with wider fixtures, as the first one's did."""
        self._runs = UntrackedRuns()
        self.heap = HeapSince(suspect.tracker.counters.heap_bytes)
        self.watched = suspect.policy.array_bytes if suspect.policy.host and may_have_untracked_arrays() else None
        """Growth of the heap in a run, in bytes, above which its arrays may be looked for; None: they are not."""

    def add_run(self, unexplained: int, growth: Growth, replaced: int = 0) -> bool:
        """Note by how many bytes a run has grown the heap beyond its other arrays; return whether it is suspected.

        `growth` is the run's, with the bytes that modules and programs explain. `replaced` are those of older arrays that it
        has let go, and that its growth does not include: of what the first run has left they are a credit, of growth not.
        """
        if self.watched is None:
            return False
        added = self._suspect.tracker.untracked.has_added
        # What programs take is an estimate, in which such arrays would be lost.
        self._grown.append(unexplained + growth.compiled if added else unexplained)
        self._added.append(added is not False)
        if self._growth is None:
            self._growth, self._replaced, self.heap.added = growth, replaced, 0
        detector = self._suspect.tracker.detector
        if self._left_by_first >= self._least_residue and (detector.show_young() or detector.sees_only_young):
            with self._suspect.guard(EXPLAIN):
                self._born |= self._arrays().of_young()
        if self._before is not None:
            with self._suspect.guard(EXPLAIN):
                self._compare(self._before.sizes)
            self._before = None
        return self.suspected

    def begin_anew(self) -> None:
        """Take this run for the first, unless that is suspected: it has set up wider fixtures that stay."""
        if not self.suspected:
            self._is_anew = True
            self._growth = None
            self._grown.clear()
            self._added.clear()

    def following(self) -> AbstractContextManager[None]:
        """Return the context in which the heap is followed, from after the first run to the verdict."""
        return contextlib.nullcontext() if self.watched is None else calling(self.heap.on_collection)

    @property
    def floor(self) -> int:
        """The bytes that each run must add: fewer where each run left more arrays than there were, or may have."""
        return self._suspect.policy.array_bytes if all(self._added) else self._suspect.policy.retained_bytes

    @property
    def suspected(self) -> bool:
        """Whether every run so far has grown the heap by more than the floor; imports of the first excuse no growth."""
        if self._growth is None:
            return False
        unexcused = self._growth.imported - self._growth.excused(self._suspect.policy.confirm)
        return min([self._grown[0] + unexcused, *self._grown[1:]]) > self.floor

    def begin_record(self) -> bool:
        """Walk over the heap for the record of one more run, and tell whether that run is needed.

        Where all arrays on the heap are smaller than what each run must have added, as in a suite of torch alone, they
        do not explain the growth.
        """
        if self._recorded or self._cut or len(self._grown) < 2 or not self.suspected:
            return False
        with self._suspect.guard(EXPLAIN):
            walk = self._walk(collected=True)
            if walk is not None and sum(walk.sizes.values()) > len(self._grown) * self.floor:
                self._before = walk
        self._recorded = True
        return self._before is not None

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Trace the re-run within this context if it is recorded (see `begin_record`)."""
        if self._before is not None:
            self._suspect.tracker.detector.show_young()  # not under the tracing: it asks for the id of each object
            self._lines.start()
        try:
            yield
        finally:
            self._before = None
            self._lines.stop()

    def begin_again(self) -> None:
        """Begin the record again, without tracing: the re-run failed under it."""
        if self._before is not None:
            self._lines.stop()
            with self._suspect.guard(EXPLAIN):
                self._before = self._walk(collected=True)

    def note_lines(self) -> None:
        """Note the creating lines of the recorded re-run, and stop tracing it: traced walks take seconds."""
        if self._before is not None:
            with self._suspect.guard(EXPLAIN), self._suspect.tracker.detector.whole_heap():
                self._origins = self._lines.of_new(self._arrays(), self._before.sizes)
        self._lines.stop()

    def forget_reruns(self) -> None:
        """Forget all re-runs, because a re-run could not be recorded to its end."""
        del self._grown[1:], self._added[1:]
        self._before = None
        self._cut = False
        self._runs = UntrackedRuns()

    def finish(self, compiled: int, *, confirmed: bool) -> None:
        """Look for arrays that the first run has left and that do not grow, or that no re-run could confirm.

        `compiled` bytes of the first run's growth are its programs'.
        """
        may_be_residue = not (self._cut or self._is_anew) and self._may_be_residue(confirmed=confirmed)
        if self._growth is not None and may_be_residue:
            grown = self._left_by_first - compiled
            sought = self._is_strict or self._added[0] or grown >= self._suspect.policy.host_bytes
            if sought and grown >= self._least_residue:
                with self._suspect.guard(EXPLAIN):
                    self._find_residue(compiled, confirmed=confirmed)
        if self._replaced and self._last is None:
            with self._suspect.guard(EXPLAIN):
                self._walk()  # what has taken the place of older arrays is to be known too
        if self._last is not None:
            self._suspect.tracker.untracked.note_all(self._last, sum(self._grown[1:]) if self.suspected else 0)

    @property
    def _is_strict(self) -> bool:
        return self._suspect.policy.confirm == 0 or self._suspect.subject.counts_running_frames

    @property
    def _left_by_first(self) -> int:
        """The bytes that the first run has left, net of the older arrays that it let go."""
        return self._grown[0] - self._replaced

    @property
    def _least_residue(self) -> int:
        """The bytes that the first run must have added for what it left to be looked for."""
        # The modules of numba or LLVM take twice what most do.
        imported = 0 if self._growth is None else self._growth.imported
        return self.floor if self._is_strict else max(self._suspect.policy.retained_bytes, imported)

    def _may_be_residue(self, *, confirmed: bool) -> bool:
        """Tell whether only the first run may have left arrays; a recorded run may have replaced what it left."""
        if not self._runs.grows:
            return not (confirmed and self.suspected)
        return not self.judge()

    def judge(self) -> tuple[Finding, ...]:
        """Return the findings on the arrays found, or a note if a walk for them was cut."""
        if self._cut:
            return judge_cut(self._grown, self._suspect.policy.host[0])
        return judge_untracked(
            self._runs, self._suspect.policy, frames_count=self._suspect.subject.counts_running_frames
        )

    @property
    def bytes_per_run(self) -> int:
        """Bytes of the heap's growth in each run that the arrays explain."""
        return added_by_record(
            self._runs, self._suspect.policy, frames_count=self._suspect.subject.counts_running_frames
        )[1]

    def _arrays(self) -> HeapArrays:
        from pytest_gpuleak.explain.untracked_arrays import HeapArrays

        return HeapArrays(array_types(self._suspect.tracker.frameworks.arrays))

    def _walk(self, *, collected: bool = False) -> MetArrays | None:
        """Walk over the heap, which is collected before if `collected`."""
        with self._suspect.tracker.detector.whole_heap():
            if collected:
                collect(2)
            with PausedCollector():
                walk = self._arrays().walk()
        self._note(walk)
        return walk

    def _note(self, walk: MetArrays | None) -> None:
        self._cut = walk is None
        self._last = walk or self._last

    def _compare(self, before: Mapping[int, int]) -> None:
        """Note the arrays that are new since the record began, and the memory that has gone."""
        with self._suspect.tracker.detector.whole_heap():
            collect(2)
            with PausedCollector():
                heap = self._arrays()
                arrays, walk = heap.find(lambda key, size: before.get(key) != size)
                self._note(walk)
                if walk is not None:
                    gone = Counter(size for key, size in before.items() if walk.sizes.get(key) != size)
                    self._runs = UntrackedRuns(gone=gone, grows=True)
                    self._explain(arrays, heap)
                arrays.clear()

    def _find_residue(self, compiled: int, *, confirmed: bool) -> None:
        """Choose among all arrays those that explain the first run's growth, and find out who holds them."""
        assert self._growth is not None
        residue = Residue(self._grown[0], compiled, self._suspect.tracker.untracked.alive(), self._born)
        walk = self._walk()
        least = self._least_residue
        if self._runs.grows:
            # The recorded run began without garbage: what re-runs have added, but for arrays that replace others, grows.
            least = max(least, (self._grown[0] + max(self.heap.added, 0)) // 2)
        if walk is None or residue.new_bytes(walk.sizes) < least:
            return
        with self._suspect.tracker.detector.whole_heap():
            collect(2)
            # What re-runs added is either still there, as what replaced the first run's, or garbage that was collected.
            residue = dataclasses.replace(residue, grown=min(self._grown[0], self._grown[0] + self.heap.added))
            heap = self._arrays()
            chosen, walk = residue.choose(heap)
            self._note(walk)
            with PausedCollector():
                self._runs = UntrackedRuns(
                    confirmed=confirmed,
                    imported=self._growth.modules,
                    sure=frozenset(self._born),
                    replaced=self._replaced,
                    up=self._suspect.tracker.ownership.active_roots,
                )
                self._explain(chosen, heap)
                chosen.clear()
        is_user_file = self._suspect.knowledge.is_user_file
        files = {one.holder.file for one in self._runs.survivors if one.holder is not None and one.holder.file}
        self._runs.libraries = frozenset(file for file in files if not is_user_file(file))

    def _may_grow(self, added: list[ArrayReading]) -> bool:
        """Tell whether what the recorded run has added may be growth: holders only leave some of it out."""
        unnamed = {(one.storage, one.storage_bytes): Survivor(1, one) for one in added}
        runs = dataclasses.replace(self._runs, survivors=tuple(unnamed.values()))
        return bool(added_by_record(runs, self._suspect.policy, frames_count=True)[0])

    def _explain(self, arrays: list[object], heap: HeapArrays) -> None:
        """Read the arrays, and note who holds each and which line made it. The whole heap must be visible."""
        from pytest_gpuleak.explain.untracked_arrays import explain_arrays

        readings = {id(array): one for array in arrays if (one := heap.read(array)) is not None}
        shared = starts_of_memory(self._suspect.tracker.frameworks.arrays) if readings else []
        mine = [array for array in arrays if id(array) in readings and not has_any(heap.reader.memory(array), shared)]
        arrays[:] = sorted(mine, key=lambda array: -readings[id(array)].storage_bytes)
        mine.clear()
        if self._runs.grows and not self._may_grow([readings[id(array)] for array in arrays]):
            return  # whoever holds them: a search takes seconds where many small arrays are on the heap
        why = explain_arrays(arrays, (id(mine),), self._suspect.tracker.frameworks.reference_finders())
        found = ((readings[identity], explanation) for identity, explanation in why.items())
        self._runs.survivors = Survivors.of_run(int(self._runs.grows), found, self._origins).all()


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
