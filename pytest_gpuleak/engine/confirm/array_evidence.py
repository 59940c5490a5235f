"""Collect the arrays that each run of a suspect left behind, and find their holders."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.arrays import array_types, select_arrays
from pytest_gpuleak.adapters.bulk import (
    hold_arrays,
    lines_of_arrays,
    parts_of_arrays,
    read_arrays,
    read_united,
    storages_of,
)
from pytest_gpuleak.adapters.storages import SharedStorages, is_storage
from pytest_gpuleak.engine.confirm.late_settling import settle_late
from pytest_gpuleak.engine.confirm.recognition import Recognition
from pytest_gpuleak.engine.confirm.survivors import Leftover, Survivors
from pytest_gpuleak.engine.settle.steps import Settling, has_weak_references, steps_that_can_release
from pytest_gpuleak.engine.stages import EXPLAIN, GRAPHS, READ, RECOGNISE
from pytest_gpuleak.heap.collector import collect, get_objects
from pytest_gpuleak.model.evidence import Evidence, Root, root_of
from pytest_gpuleak.model.findings import Holder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.adapters.protocol import ArrayFramework, OriginLog, SettleStep, StorageHandle
    from pytest_gpuleak.engine.detect.detector import Detector
    from pytest_gpuleak.engine.stages import Guard, Stage
    from pytest_gpuleak.explain.explanation import Explanation
    from pytest_gpuleak.explain.known_culprits import Culprits
    from pytest_gpuleak.model.findings import Autograd
    from pytest_gpuleak.model.readings import ArrayReading

EXPLAIN_BUDGET_S = 8.0
"""Seconds that all searches for the holders of one test's arrays may take, re-runs included."""

MANY_ARRAYS = 10_000
"""From this many arrays on, their sum is taken once a run and not after each step of the settling."""

NOT_SEARCHED = "not searched for, since no report is written and notes are not shown (-v)"
"""Why the holder of a note is unknown."""

GRAPHS_BUDGET_S = 1.0
"""Seconds for counting what one test's autograd graphs retain; graphs beyond that are counted in part."""


class ArrayEvidence:
    """Collect the runs of one suspect. Holds ids, plain data and weak handles between calls, no array.

    `culprits` gives what held leaked arrays before; None to search the whole heap each time. `guard` gives the context
    for a stage that the verdict can do without; None lets its errors through. `is_user_file` tells a user's source
    files, for the lines that arrays themselves know; None: they are not asked.
    """

    def __init__(
        self,
        detector: Detector,
        arrays: Sequence[ArrayFramework],
        frameworks: Frameworks,
        culprits: Callable[[], Culprits] | None = None,
        guard: Callable[[Stage], Guard] | None = None,
        is_user_file: Callable[[str], bool] | None = None,
    ) -> None:
        self._natives = frameworks
        self._is_user_file = is_user_file
        self._guard: Callable[[Stage], AbstractContextManager[Any]] = guard or (lambda _: nullcontext())
        self._detector = detector
        self._frameworks = arrays
        self._culprits = culprits
        self._recognition = Recognition(detector, arrays, frameworks, culprits, self._note_graphs_of_recognised)
        self._left: dict[int, Leftover] = {}  # by id: a later array at the same address replaces a dead one
        self._cycles: tuple[ArrayReading, ...] = ()
        self._survivors = Survivors()
        self._graphs: dict[Root, Autograd] = {}
        self._alive: list[frozenset[int]] = []
        self._handles: dict[int, StorageHandle] = {}
        self._standing: set[int] = set()  # ids of the arrays that were alive when the last run began
        self._first: frozenset[int] = frozenset()
        self._added: tuple[dict[str, int], int] | None = None
        self._runs = 0
        self._evidence: Evidence | None = None
        self._explain_left_s = EXPLAIN_BUDGET_S

    def add_run(
        self,
        arrays: list[object],
        settle_steps: Iterable[SettleStep],
        threads: frozenset[int],
        young: Sequence[SettleStep] = (),
        *,
        threaded: bool = False,
        decide: Callable[[Sequence[object]], bool] | None = None,
        recognise: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Settle what a run left, note what stays, and tell whether anything does.

        Args:
            arrays: strong references to the arrays that it left; emptied here.
            settle_steps: the steps to take.
            threads: the threads that ran before the run.
            young: the cheap steps to take first. If known culprits alone hold what stays, steps that cannot make them
                let go are left out.
            threaded: whether another thread ran when the arrays were searched for.
            decide: tells whether what stays after the cheap steps is no suspect.
            recognise: tells whether holders are of use.
        """
        readings = read_united(arrays, self._frameworks)
        shared = SharedStorages(arrays, self._natives.storages)
        arrays[:] = [array for array in arrays if id(array) in readings]
        # In most suites a young collection frees all: hold only what stays. An array without weak references cannot be
        # found again, so hold it first.
        handles = hold_arrays([array for array in arrays if not has_weak_references(array)], self._frameworks)
        settled = Settling(arrays, threads, threaded=threaded)
        settled.run(young)
        if decide is not None and settled.alive:
            with self._guard(RECOGNISE):
                if len(living := list(settled.found())) == len(settled.alive) and decide(living):
                    settled.alive.clear()
            living = []
        handles |= hold_arrays(settled.found(), self._frameworks)
        settled.alive &= handles.keys()
        recognised = False
        self._recognition.met.clear()
        with self._guard(RECOGNISE):
            recognised = bool(settled.alive) and recognise() and self._recognition.recognise(settled.alive)
        if settled.alive and not recognised:
            with self._guard(READ):
                settled.leave_out(parts_of_arrays(settled.found(), self._frameworks))
        settled.run(steps_that_can_release(settle_steps, threads) if recognised else settle_steps)
        # Again, of what stays: arrays were still being computed, and parts of others were among them.
        readings |= read_united(list(settled.found()), self._frameworks)
        late = list(shared.left())
        outlived = read_arrays(late, self._frameworks)
        handles |= hold_arrays(late, self._frameworks)
        late.clear()
        if self._runs == 0:
            kept = {reading.storage for reading in outlived.values()}
            cycles = (readings[identity] for identity in settled.cycles)
            self._cycles = tuple(reading for reading in cycles if reading.storage not in kept)
        readings |= outlived
        settled.alive |= outlived.keys()
        left = {identity: Leftover(self._runs, readings[identity]) for identity in settled.alive}
        indices = frozenset(map(self._survivors.index_of, left.values()))
        if self._runs == 0:
            self._first = indices
        self._take_in(left, handles)
        if settled.alive and self._is_user_file is not None:
            for identity, line in lines_of_arrays(settled.found(), self._frameworks, self._is_user_file).items():
                self._survivors.note_line(left[identity], line)
        self._runs += 1
        return bool(settled.alive)

    def add_hidden(self, arrays: list[object]) -> None:
        """Note arrays (emptied here) that the last run has left and that had no Python object before."""
        readings = read_arrays(arrays, self._frameworks)
        left = {identity: Leftover(self._runs - 1, reading) for identity, reading in readings.items()}
        self._take_in(left, hold_arrays(arrays, self._frameworks))
        arrays.clear()
        indices = frozenset(map(self._survivors.index_of, left.values()))
        if self._runs == 1:
            self._first |= indices

    def met_in_search(self) -> list[object]:
        """Return the arrays that had no Python object before the last run's search for holders read them."""
        return self._detector.find(self._recognition.met) if self._recognition.met else []

    @property
    def left_arrays(self) -> bool:
        """Whether any array is known to have been left."""
        return bool(self._left)

    def added(self) -> tuple[dict[str, int], int]:
        """Return the bytes by device, and the number, of storages that the last run left, less what it released."""
        if self._added is None or len(self._left) <= MANY_ARRAYS:
            moved, sizes = list(self.moved_storages()), Counter[str]()
            for reading, sign in moved:
                for device, size in reading.places():
                    sizes[device] += sign * size
            self._added = sizes, sum(sign for _, sign in moved)
        return self._added

    def moved_storages(self) -> Iterator[tuple[ArrayReading, int]]:
        """Yield a reading of each storage that the last run left (1) or released (-1)."""
        met: set[int] = set()
        for identity, (run, reading) in self._left.items():
            new = run == self._runs - 1
            gone = not new and identity in self._standing and not self._handles[identity].alive()
            if (new or gone) and reading.storage not in met:
                met.add(reading.storage)
                yield reading, 1 if new else -1

    def leftovers(self) -> list[tuple[str, int, StorageHandle, str]]:
        """Return what is still alive: device, bytes, a weak handle, and the text of the holder."""
        found: dict[int, tuple[str, int, StorageHandle, str]] = {}
        for identity, left in self._left.items():
            handle, reading = self._handles[identity], left.reading
            if handle.alive():
                holder = self._survivors.of(left).holder
                found[reading.storage] = (
                    reading.device, reading.storage_bytes, handle, "" if holder is None else holder.text
                )  # fmt: skip
        return list(found.values())

    def expect_run(self) -> None:
        """Note which arrays are alive before a re-run begins."""
        self._standing = {identity for identity, handle in self._handles.items() if handle.alive()}
        self._recognition.note_born()
        self._added = None

    def look(self, origins: OriginLog | None = None) -> None:
        """Note, after each run, which arrays are alive and who holds them; `origins` are the lines noted in a re-run."""
        from pytest_gpuleak.heap.referrers import PausedCollector

        self._evidence = None
        looks = len(self._alive)
        with self._guard(EXPLAIN) as stage:
            if self._recognised_where_they_are():
                self._look_at_recognised(origins or {})
            else:
                with self._detector.whole_heap(), PausedCollector():
                    self._look(origins or {})
        if len(self._alive) == looks:
            self._look_at_handles(f"the search failed: {stage.fault}", origins or {})

    def look_briefly(self, origins: OriginLog | None = None) -> None:
        """Like `look`, but ask the weak handles alone: no holder is searched for."""
        self._evidence = None
        self._look_at_handles(NOT_SEARCHED, origins or {})

    def recognise_late(self) -> None:
        """Recognise what all runs left, once a brief look has told that holders are of use."""
        living = self._living()
        if living and not self._recognition.covers(living):
            with self._guard(RECOGNISE):
                self._recognition.recognise(*self._by_age(living))

    def _by_age(self, living: set[int]) -> tuple[set[int], set[int]]:
        young = {identity for identity in living if self._left[identity].run == self._runs - 1}
        return young, living - young

    def settle(self, settle_steps: Iterable[SettleStep], threads: frozenset[int]) -> bool:
        """Take steps that `add_run` was not given, forget what they free and the last run's look; tell if any stays."""
        self.forget_look()
        if self._recognition.covers(self._left):
            settle_steps = steps_that_can_release(settle_steps, threads)
        garbage, collected = settle_late(settle_steps, self._left, self._living)
        self._first -= {self._survivors.index_of(left) for left in garbage.values()}
        self._cycles += tuple(left.reading for identity, left in garbage.items() if identity in collected)
        self._added = self._evidence = None
        return bool(self._living())

    def forget_look(self) -> None:
        """Forget the last look after a re-run, which another is to follow."""
        del self._alive[max(self._runs - 2, 0) :]
        self._evidence = None

    def _living(self) -> set[int]:
        return {identity for identity in self._left if self._handles[identity].alive()}

    def forget_reruns(self) -> None:
        """Forget all re-runs, because a re-run could not be recorded to its end."""
        self._left = {identity: left for identity, left in self._left.items() if left.run == 0}
        self._recognition.keep_only(self._left)
        self._runs = min(self._runs, 1)
        self._added = self._evidence = None
        self._alive.clear()

    def evidence(self) -> Evidence:
        """Return the evidence for `engine.judge.arrays.judge`: the same object until more is found."""
        if self._evidence is None:
            alive = [self._first, *self._alive] if self._runs > 1 else [self._first]
            self._evidence = Evidence(self._survivors.all(), tuple(alive), self._cycles, dict(self._graphs))
        return self._evidence

    @property
    def confirmed(self) -> bool:
        """Whether a re-run has been examined."""
        return bool(self._alive)

    @property
    def identities(self) -> set[int]:
        """Ids of the arrays left behind so far."""
        return set(self._left)

    def _take_in(self, left: Mapping[int, Leftover], handles: Mapping[int, StorageHandle]) -> None:
        self._added = self._evidence = None
        self._left.update(left)
        self._handles.update({identity: handles[identity] for identity in left})

    def _note_graphs_of_recognised(self, arrays: Sequence[object], found: Sequence[Explanation]) -> None:
        if not self._graphs:
            with self._guard(GRAPHS):
                self._note_graphs(arrays, found, read_arrays(arrays, self._frameworks))

    def _recognised_where_they_are(self) -> bool:
        """Tell whether all arrays are recognised, each at the place where it still is."""
        living = self._living()
        if not living:  # no storage is, but `swap_tensors` gives the array that stays another: the handle knows the old
            return False
        if not self._recognition.covers(living):
            with self._guard(RECOGNISE):
                self._recognition.recognise_of_all_runs(*self._by_age(living))
            if not self._recognition.covers(living):
                return False
        if not self._recognition.one_place_holds_two_runs(self._left):
            return True
        with self._detector.whole_heap():
            collect(2)
        return not self._recognition.has_outdated_place(self._left)

    def _look_at_recognised(self, origins: OriginLog) -> None:
        """Like `_look`, but ask the weak handles instead of walking the heap.

        A handle tells whether the storage lives. Of arrays that use one with others, only the heap tells which are alive.
        """
        living = self._living()
        alive = [(self._left[identity], self._recognition.found[identity]) for identity in living]
        ours = Counter(left.reading.storage for left, _ in alive)
        shared: set[int] = set()
        if len({(left.run, left.reading.storage) for left, _ in alive}) > len(ours) or any(
            recognised.users is None or recognised.users > ours[left.reading.storage] for left, recognised in alive
        ):
            with self._detector.whole_heap():
                targets, shared = self._find()
                living &= set(map(id, targets))
                targets.clear()
            alive = [(self._left[identity], self._recognition.found[identity]) for identity in living]
        self._note([(left, recognised.explanation) for left, recognised in alive], shared, origins)

    def _look_at_handles(self, why: str, origins: OriginLog) -> None:
        """Note what the weak handles say is alive; `why` tells why the holders are unknown."""
        unknown = Holder("unknown", "", f"unknown: {why}")
        alive = (left for identity, left in self._left.items() if self._handles[identity].alive())
        self._alive.append(self._survivors.note_unexplained(alive, unknown, origins, self._runs - 1))

    def _look(self, origins: OriginLog) -> None:
        from pytest_gpuleak.explain.crowds import explain_crowd
        from pytest_gpuleak.explain.search import BUDGET_S
        from pytest_gpuleak.heap.referrers import Deadline

        targets, shared = self._find()
        # The largest arrays are shown, and in a crowd only the first paths are written in full.
        targets.sort(key=lambda target: -self._left[id(target)].reading.storage_bytes)
        culprits = None if self._culprits is None else self._culprits()
        remember = None if culprits is None else culprits.remember
        deadline = Deadline(self._explain_left_s)
        budget_s = min(BUDGET_S, self._explain_left_s)
        explanations = explain_crowd(
            targets,
            ignore={id(targets)},
            remember=remember,
            budget_s=budget_s,
            frameworks=self._natives.reference_finders(),
        )
        if culprits is not None:
            culprits.note_search(self._explain_left_s - deadline.left())
        self._explain_left_s = deadline.left()
        found = [(self._left[id(target)], why) for target, why in zip(targets, explanations, strict=True)]
        with self._guard(GRAPHS):
            self._note_graphs(targets, explanations, {identity: left.reading for identity, left in self._left.items()})
        targets.clear()
        if culprits is not None:
            for explanation in {id(why): why for _, why in found}.values():
                culprits.remember_ring(explanation)
        self._note(found, shared, origins)

    def _note_graphs(
        self, arrays: Sequence[object], explanations: Sequence[Explanation], readings: Mapping[int, ArrayReading]
    ) -> None:
        """Note by root how much memory the autograd graphs behind the arrays of the earliest run among them retain."""
        from pytest_gpuleak.heap.referrers import Deadline

        runs = [self._left[id(array)].run if id(array) in self._left else self._runs for array in arrays]
        first = min(runs, default=0)
        groups: dict[Root, list[object]] = defaultdict(list)
        for array, explanation, run in zip(arrays, explanations, runs, strict=True):
            reading = readings.get(id(array))
            if reading is not None and run == first:
                groups[root_of(reading.device, explanation.holder)].append(array)
        deadline = Deadline(GRAPHS_BUDGET_S)
        for root, members in groups.items():
            if deadline.passed():
                break  # each count waits for threads in a backward pass, so many roots would take forever
            retained = self._natives.graph_size(members, deadline.left())
            if retained is not None:
                self._graphs[root] = retained

    def _note(self, found: Sequence[tuple[Leftover, Explanation]], shared: set[int], origins: OriginLog) -> None:
        self._alive.append(self._survivors.note(found, shared, origins, self._runs - 1))

    def _find(self) -> tuple[list[object], set[int]]:
        """Return the arrays left that are alive, and the storages that other arrays use too."""
        arrays = select_arrays(get_objects(), array_types(self._frameworks))
        targets: list[object] = []
        others: list[object] = []
        array: object = None
        storages = array_types(self._natives.storages)
        for array in arrays:
            if id(array) in self._left:
                targets.append(array)
            elif not is_storage(array, storages):  # a storage object owns nothing but itself
                others.append(array)
        del arrays, array
        # Reading an autograd graph creates Python objects for its tensors: these are no other users.
        alone = {one for finder in self._natives.reference_finders() for one in finder.held_alone(others)}
        shared = storages_of((one for one in others if id(one) not in alone), self._frameworks)
        return targets, shared
