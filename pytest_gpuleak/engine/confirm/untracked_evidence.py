"""Collect the arrays of a suspect that the collector does not track: NumPy's. The heap's counter is what suspects them.

A suspect whose heap grows in two runs is run once more between two walks over the heap: the arrays that are new then grow.
Where only the first run grew, a single walk finds arrays of the size of that growth.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from time import process_time
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.arrays import array_types
from pytest_gpuleak.adapters.registry import may_have_untracked_arrays, untracked_array_counts
from pytest_gpuleak.engine.confirm.allocation_lines import MAX_TRACED_RUNS, TRACED_RERUN_S, AllocationLines
from pytest_gpuleak.engine.confirm.lenders import has_any, starts_of_memory
from pytest_gpuleak.engine.confirm.residue import Residue
from pytest_gpuleak.engine.survivors import Leftover, Survivors
from pytest_gpuleak.engine.confirm.walk_limits import may_record, may_search_once, may_watch, runs_before_record
from pytest_gpuleak.engine.detect.counters import MODULE_BYTES
from pytest_gpuleak.engine.judge.untracked import UntrackedRuns, judge_untracked
from pytest_gpuleak.engine.stages import EXPLAIN
from pytest_gpuleak.heap.collector import collect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.engine.stages import Guard, Stage
    from pytest_gpuleak.engine.subject import Subject
    from pytest_gpuleak.explain.untracked_arrays import HeapArrays
    from pytest_gpuleak.model.findings import Finding, Origin
    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.model.readings import Growth

LEAST_TRACED: Final = 512
"""Smallest memory whose creating line is told, in bytes."""

MAX_TRACED: Final = 1000
"""Arrays whose creating lines are told."""

BESIDE_ARRAYS: Final = 4 * 1024 * 1024
"""Least growth in bytes beside other arrays that the run left.

Their graphs and modules take some: 582 autograd nodes half a MiB, which made a leaking test three times as expensive.
"""

TRACED_AT_ONCE_S: Final = 0.1
"""Seconds that a run may take to be traced before arrays are known to grow: it takes five to ten times as long then."""


class UntrackedEvidence:
    """Collect what each run of a suspect added to the heap, and the arrays behind it."""

    def __init__(
        self,
        tracker: RunTracker,
        knowledge: SessionKnowledge,
        subject: Subject,
        policy: Policy,
        guard: Callable[[Stage], Guard],
    ) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self._subject = subject
        self._policy = policy
        self._guard = guard
        self._grown: list[int] = []
        self._added: list[bool] = []
        self._compiled = 0
        self._before: dict[int, int] | None = None
        self._walked: dict[int, int] | None = None  # all sizes at the last walk
        self._lines = AllocationLines(knowledge.is_user_file)
        self._born: set[int] = set()
        self._imported: tuple[str, ...] = ()
        self._of_imports = 0
        self._shared = False
        self._runs = UntrackedRuns()
        self._findings: tuple[Finding, ...] | None = None
        self._recorded = False
        self._ruled_out = False
        self._unexplained = False  # a walk has found that no arrays explain the growth of the only run so far
        self._owes_lines = False
        self._beside_arrays = False
        self._origins: dict[int, Origin] = {}
        self._began = process_time()
        self.floor = (
            policy.array_bytes if policy.host and may_have_untracked_arrays() and may_watch(knowledge) else None
        )
        """Growth of the heap in a run, in bytes, above which its arrays are looked for; None: they are not."""

    def add_run(self, unexplained: int, growth: Growth, *, beside_arrays: bool) -> bool:
        """Note by how many bytes a run has grown the heap beyond its other arrays; return whether it is suspected.

        `growth` is the run's, with the bytes that modules explain; `beside_arrays` tells whether it left any.
        """
        if self.floor is None:
            return False
        if beside_arrays:
            self._beside_arrays = True
            self.floor = max(self.floor, BESIDE_ARRAYS)
        added = self._tracker.has_added_arrays
        # What programs take is an estimate, in which such arrays would be lost.
        self._grown.append(unexplained + growth.compiled if added else unexplained)
        self._added.append(added is not False)
        if len(self._grown) == 1 and self.suspected:
            with self._guard(EXPLAIN):
                self._born = self._arrays().of_young() if self._tracker.detector.sees_only_young else set()
            self._imported = tuple(_newest_modules(growth.imported // MODULE_BYTES))
            self._of_imports = growth.imported
            self._shared = growth.shared
        if self._before is not None:
            with self._guard(EXPLAIN):
                self._compare()
        return self.suspected

    @property
    def suspected(self) -> bool:
        """Whether every run so far has grown the heap by more than the floor."""
        return self.floor is not None and bool(self._grown) and min(self._grown) > self.floor

    @property
    def adds_arrays(self) -> bool:
        """Whether each run so far may have left more arrays than there were."""
        return all(self._added)

    def may_explain_growth(self) -> bool:
        """Tell by a walk whether arrays may explain what the only run so far has added; true if that is not known."""
        found = True
        if not self._grown:
            return found
        with self._guard(EXPLAIN), self._tracker.detector.whole_heap():
            residue = self._residue()
            chosen, now = residue.choose(self._arrays())
            found = bool(chosen) or now is None or residue.may_be_many(now)
            self._unexplained = not found
            chosen.clear()
            self._walked = now or self._walked
        return found

    def _residue(self) -> Residue:
        known = self._tracker.known_arrays() | self._knowledge.known_arrays
        return Residue(self._grown[0], self._compiled, known, self._born, shared=self._shared)

    def begin_record(self) -> bool:
        """Begin the record of one more run, and tell whether that run is worth it.

        Where all arrays on the heap are smaller than what each run must have added, as in a suite of torch alone, they
        do not explain the growth, and one walk is all that it takes. Garbage among them only makes them more, so that
        walk needs no collection.
        """
        if self._owes_lines and self._runs.survivors:
            return True
        if self._recorded or not self._may_record:
            return False
        if len(self._grown) < self._runs_needed:
            return True
        began = process_time()
        with self._guard(EXPLAIN):
            self._before = self._sizes_before_record()
        if self._may_explain(self._before):
            return True
        self._before = None
        self._ruled_out = True
        self._charge_vain(process_time() - began)
        return False

    def _may_explain(self, sizes: dict[int, int] | None) -> bool:
        """Tell whether arrays of these sizes may explain the growth. None: the time was up before the walk's end."""
        return sizes is not None and sum(sizes.values()) > len(self._grown) * self._policy.array_bytes

    @property
    def _runs_needed(self) -> int:
        return runs_before_record(self._subject.expected_s, adds_arrays=self.adds_arrays)

    @property
    def _may_record(self) -> bool:
        if self._ruled_out or not self.suspected:
            return False
        beside, adds = self._beside_arrays, self.adds_arrays
        return self._recorded or may_record(self._knowledge, beside_arrays=beside, adds_arrays=adds)

    @property
    def traces(self) -> bool:
        """Whether the re-run that begins next is traced."""
        return self._lines.tracing

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Find out which arrays a re-run within this context adds, if the runs before it have grown the heap."""
        began = process_time()
        records = self._may_record and len(self._grown) >= self._runs_needed
        if records:
            self._recorded = True
            with self._guard(EXPLAIN):
                self._begin()
        try:
            yield
        finally:
            self._before = None
            self._lines.stop()
            if records and not self._runs.survivors:
                self._charge_vain(process_time() - began)

    def begin_again(self) -> None:
        """Begin the record again, without tracing: the re-run failed under it."""
        if self._before is not None:
            self._lines.stop()
            with self._guard(EXPLAIN):
                self._before = self._walk_sizes()

    def forget_reruns(self) -> None:
        """Forget all re-runs, because a re-run could not be recorded to its end."""
        del self._grown[1:], self._added[1:]
        self._before = self._findings = None
        self._runs = UntrackedRuns()

    def finish(self, compiled: int, *, confirmed: bool) -> None:
        """Look for arrays that the first run has left and that do not grow, or that no re-run could confirm.

        `compiled` bytes of the first run's growth are its programs'.
        """
        self._look_for_residue(compiled, confirmed=confirmed)
        if self._walked is not None:
            self._knowledge.known_arrays = self._walked

    def _look_for_residue(self, compiled: int, *, confirmed: bool) -> None:
        # The plugin's own record grows the heap too, by a few hundred KiB.
        replaced = self._runs.grows and 2 * self._grown[-1] < self._grown[0] and not self.judge()
        if replaced:
            self._runs = UntrackedRuns()  # the recorded run replaced what the one before had left
        grows = self._runs.grows or (confirmed and self.suspected and not replaced)
        if self.floor is None or not self._grown or grows:
            return
        strict = self._policy.confirm == 0 or self._subject.counts_running_frames
        # The modules of numba or LLVM take twice what most do, and a walk over the heap that they fill is the dearest.
        least = self.floor if strict else max(self._policy.retained_bytes, self.floor, self._of_imports)
        knowledge, began, self._compiled = self._knowledge, process_time(), compiled
        grown, adds = self._grown[0] - compiled, self._added[0]
        if self._unexplained and not compiled and len(self._grown) == 1:
            return
        if grown >= least and may_search_once(knowledge, grown, sure=strict, adds_arrays=adds):
            with self._guard(EXPLAIN):
                self._find_residue(confirmed=confirmed)
            knowledge.residue_s = process_time() - began
            if not self._runs.survivors:
                self._charge_growth(knowledge.residue_s)

    def judge(self) -> tuple[Finding, ...]:
        """Return the findings on the arrays found."""
        if self._findings is None:
            self._findings = judge_untracked(self._runs, self._policy, frames_count=self._subject.counts_running_frames)
        return self._findings

    @property
    def bytes_per_run(self) -> int:
        """Bytes of the heap's growth in each run that the arrays explain."""
        return self._runs.per_run

    def charge(self) -> None:
        """Charge the time since the check began to growth that no array explains."""
        self._charge_growth(process_time() - self._began)

    def _charge_vain(self, spent_s: float) -> None:
        """Charge a record that has found nothing at once: the test may have cycles to tell of, and is not charged whole."""
        if self._beside_arrays or not self.adds_arrays:
            self._knowledge.vain_records_s += spent_s
        else:
            self._charge_growth(spent_s)

    def _charge_growth(self, spent_s: float) -> None:
        self._knowledge.unexplained_growth_s += spent_s
        self._began += spent_s

    def _arrays(self) -> HeapArrays:
        from pytest_gpuleak.explain.untracked_arrays import HeapArrays

        return HeapArrays(array_types(self._tracker.frameworks.arrays))

    def _begin(self) -> None:
        if self._before is None:
            self._before = self._walk_sizes()
        expected_s = self._subject.expected_s or 0.0
        waits = expected_s > TRACED_AT_ONCE_S and (self._beside_arrays or not self._runs.survivors)
        self._owes_lines = waits and not self._beside_arrays and expected_s <= TRACED_RERUN_S
        if waits:
            return
        if self._knowledge.traced_runs < MAX_TRACED_RUNS:
            self._lines.start(self._subject.expected_s)
            self._knowledge.traced_runs += self._lines.tracing

    def _walk_sizes(self, *, collected: bool = True) -> dict[int, int] | None:
        from pytest_gpuleak.heap.referrers import PausedCollector

        with self._tracker.detector.whole_heap():
            if collected:
                collect(2)
            with PausedCollector():
                return self._arrays().sizes()

    def _sizes_before_record(self) -> dict[int, int] | None:
        if self._may_explain(self._knowledge.known_arrays):
            return self._walk_sizes()
        sizes = self._walk_sizes(collected=False)
        if self._may_explain(sizes) and self._collection_frees_arrays():
            return self._walk_sizes(collected=False)
        return sizes

    def _collection_frees_arrays(self) -> bool:
        before = untracked_array_counts()
        with self._tracker.detector.whole_heap():
            collect(2)
        return not before or untracked_array_counts() != before

    def _compare(self) -> None:
        """Note the arrays that are new since the record began, and the memory that has gone."""
        from pytest_gpuleak.heap.referrers import PausedCollector

        before, self._before = self._before, None
        assert before is not None
        with self._tracker.detector.whole_heap():
            collect(2)
            with PausedCollector():
                heap = self._arrays()
                arrays, now = heap.find(lambda key, size: before.get(key) != size)
                if now is not None:
                    gone = Counter(size for key, size in before.items() if now.get(key) != size)
                    self._runs = UntrackedRuns(gone=gone, grows=True)
                    self._explain(arrays, heap)
                    self._walked = now
                arrays.clear()
        self._findings = None

    def _find_residue(self, *, confirmed: bool) -> None:
        """Choose among all arrays those that explain the first run's growth, and find out who holds them."""
        from pytest_gpuleak.heap.referrers import PausedCollector

        with self._tracker.detector.whole_heap():
            heap, residue = self._arrays(), self._residue()
            chosen, now = residue.choose(heap)
            if chosen:  # some may be garbage: most walks find none, and are spared the collection
                chosen.clear()
                collect(2)
                chosen, now = residue.choose(heap)
            with PausedCollector():
                self._runs = UntrackedRuns(confirmed=confirmed, imported=self._imported, sure=frozenset(self._born))
                self._explain(chosen, heap)
                self._runs.libraries = frozenset(
                    one.holder.file
                    for one in self._runs.survivors
                    if one.holder and one.holder.file and not self._knowledge.is_user_file(one.holder.file)
                )
                chosen.clear()
        self._walked = now or self._walked
        self._findings = None

    def note_lines(self) -> None:
        """Note the creating lines of the recorded re-run, and stop tracing it: traced walks take seconds."""
        with self._guard(EXPLAIN):
            if self._before is not None and self._lines.knows_any(LEAST_TRACED):
                self._origins = self._lines_of_new(self._before)
        self._lines.stop()

    def _lines_of_new(self, before: dict[int, int]) -> dict[int, Origin]:
        with self._tracker.detector.whole_heap():
            heap = self._arrays()
            arrays = heap.plain(lambda key, size: size >= LEAST_TRACED and before.get(key) != size)
            lines = {heap.key_of(array): self._lines.of(heap.reader.allocated(array)) for array in arrays[:MAX_TRACED]}
            arrays.clear()
        return {key: line for key, line in lines.items() if line is not None}

    def _explain(self, arrays: list[object], heap: HeapArrays) -> None:
        """Read the arrays, and note who holds each and which line made it. The whole heap must be visible."""
        from pytest_gpuleak.explain.untracked_arrays import explain_arrays

        readings = {id(array): one for array in arrays if (one := heap.read(array)) is not None}
        shared = starts_of_memory(self._tracker.frameworks.arrays) if readings else []
        mine = [array for array in arrays if id(array) in readings and not has_any(heap.reader.memory(array), shared)]
        arrays[:] = sorted(mine, key=lambda array: -readings[id(array)].storage_bytes)
        mine.clear()
        why = explain_arrays(arrays, (id(mine),), self._tracker.frameworks.reference_finders())
        survivors = Survivors()
        run = int(self._runs.grows)
        found = [(Leftover(run, readings[identity]), one) for identity, one in why.items()]
        survivors.note(found, set(), self._origins, run)
        self._runs.survivors = survivors.all()


def _newest_modules(count: int) -> Iterator[str]:
    import sys

    names = [name for name in dict.copy(sys.modules) if type(name) is str]
    yield from names[len(names) - min(count, len(names)) :]
