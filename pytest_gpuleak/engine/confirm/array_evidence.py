"""Collect the arrays that each run of a suspect left behind."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.bulk import hold_arrays, lines_of_arrays, parts_of_arrays, read_arrays, read_united
from pytest_gpuleak.adapters.storages import SharedStorages
from pytest_gpuleak.engine.confirm.array_looks import ArrayLooks
from pytest_gpuleak.engine.confirm.late_settling import SettledLate, find_doubtful, settle_late
from pytest_gpuleak.engine.confirm.left_arrays import FIRST_RERUN, LeftArrays
from pytest_gpuleak.engine.confirm.recognition import Recognition
from pytest_gpuleak.engine.confirm.retained_graphs import RetainedGraphs
from pytest_gpuleak.engine.confirm.runner_holds import find_kept_by_runner
from pytest_gpuleak.engine.confirm.survivors import Leftover, Survivors
from pytest_gpuleak.engine.settle.steps import Settling, steps_that_can_release
from pytest_gpuleak.engine.stages import READ, RECOGNISE
from pytest_gpuleak.heap.weak_references import has_weak_references
from pytest_gpuleak.model.evidence import Evidence, Keeper
from pytest_gpuleak.model.findings import CYCLE_ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.adapters.protocol import ArrayFramework, SettleStep, StorageHandle
    from pytest_gpuleak.engine.confirm.runner_holds import Keepers
    from pytest_gpuleak.engine.detect.detector import Detector
    from pytest_gpuleak.engine.stages import Guard, Stage
    from pytest_gpuleak.explain.known_culprits import Culprits
    from pytest_gpuleak.model.readings import ArrayReading


class ArrayEvidence:
    """Collect the runs of one suspect. Holds ids, plain data and weak handles between calls, no array.

    `culprits` gives what held leaked arrays before; None to search the whole heap each time. `guard` gives the context
    for a stage that the verdict can do without; None lets its errors through. `is_user_file` tells a user's source
    files, for the lines that arrays themselves know; None: they are not asked. `freed` were garbage of the first run.
    """

    def __init__(
        self,
        detector: Detector,
        arrays: Sequence[ArrayFramework],
        frameworks: Frameworks,
        culprits: Callable[[], Culprits] | None = None,
        guard: Callable[[Stage], Guard] | None = None,
        is_user_file: Callable[[str], bool] | None = None,
        freed: tuple[ArrayReading, ...] = (),
    ) -> None:
        self._natives = frameworks
        self._is_user_file = is_user_file
        self._guard: Callable[[Stage], AbstractContextManager[Any]] = guard or (lambda _: nullcontext())
        self._detector = detector
        self._frameworks = arrays
        self.left = LeftArrays(arrays)
        self._cycles = freed
        self._survivors = Survivors()
        self._graphs = RetainedGraphs(self.left, arrays, frameworks, self._guard)
        self._recognition = Recognition(detector, arrays, frameworks, culprits, self._graphs.note_recognised)
        self.looks = ArrayLooks(
            self.left,
            self._survivors,
            self._recognition,
            self._graphs,
            detector,
            arrays,
            frameworks,
            culprits,
            self._guard,
            self._forget_evidence,
        )
        """What is alive, and who holds it."""
        self._first: frozenset[int] = frozenset()
        self._kept: dict[int, Keeper] = {}
        self._decided = frozenset[int]()  # ids of what is no suspect
        self._evidence: Evidence | None = None
        self._doubted = frozenset[int]()

    def add_run(
        self,
        arrays: list[object],
        settle_steps: Iterable[SettleStep],
        threads: frozenset[int],
        young: Sequence[SettleStep] = (),
        *,
        threaded: bool = False,
        decide: Callable[[Sequence[object]], frozenset[int]] | None = None,
        recognise: Callable[[], bool] = lambda: True,
        collected: bool = False,
    ) -> bool:
        """Settle what a run left, note what stays, and tell whether anything does.

        Args:
            arrays: strong references to the arrays that it left; emptied here.
            settle_steps: the steps to take.
            threads: the threads that ran before the run.
            young: cheap steps to take first; if known culprits alone hold what stays, only those that can free it.
            threaded: whether another thread ran when the arrays were searched for.
            decide: returns the ids of what is no suspect, of what stays after the cheap steps.
            recognise: tells whether holders are of use.
            collected: whether the whole heap was collected since the run.
        """
        self.looks.collected = collected
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
                if len(living := list(settled.found())) == len(settled.alive):
                    self._decided = decide(living)
                    settled.leave_out(self._decided)
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
        settled.run(self._noted(steps_that_can_release(settle_steps, threads) if recognised else settle_steps))
        # Again, of what stays: arrays were still being computed, and parts of others were among them.
        readings |= read_united(list(settled.found()), self._frameworks)
        late = list(shared.left())
        outlived = read_arrays(late, self._frameworks)
        handles |= hold_arrays(late, self._frameworks)
        late.clear()
        if self.left.runs == 0:
            kept = {reading.storage for reading in outlived.values()}
            cycles = (readings[identity] for identity in settled.cycles)
            self._cycles += tuple(reading for reading in cycles if reading.storage not in kept)
        readings |= outlived
        settled.alive |= outlived.keys()
        left = {identity: Leftover(self.left.runs, readings[identity]) for identity in settled.alive}
        indices = frozenset(map(self._survivors.index_of, left.values()))
        if self.left.runs == 0:
            self._first = indices
        self._take_in(left, handles)
        if settled.alive and self._is_user_file is not None:
            for identity, line in lines_of_arrays(settled.found(), self._frameworks, self._is_user_file).items():
                self._survivors.note_line(left[identity], line)
        self.left.runs += 1
        return bool(settled.alive)

    def add_hidden(self, arrays: list[object]) -> None:
        """Note arrays (emptied here) that the last run has left and that had no Python object before."""
        readings = read_arrays(arrays, self._frameworks)
        left = {identity: Leftover(self.left.runs - 1, reading) for identity, reading in readings.items()}
        self._take_in(left, hold_arrays(arrays, self._frameworks))
        arrays.clear()
        indices = frozenset(map(self._survivors.index_of, left.values()))
        if self.left.runs == 1:
            self._first |= indices

    def met_in_search(self) -> list[object]:
        """Return the arrays that had no Python object before the last run's search for holders read them."""
        return self._detector.find(self._recognition.met) if self._recognition.met else []

    @property
    def left_arrays(self) -> bool:
        """Whether any array is known to have been left."""
        return bool(self.left.by_id)

    def leftovers(self) -> list[tuple[str, int, StorageHandle, str]]:
        """Return what is still alive: device, bytes, a weak handle, and the text of the holder."""
        found: dict[int, tuple[str, int, StorageHandle, str]] = {}
        for identity in self.left.living():
            left = self.left.by_id[identity]
            reading, holder = left.reading, self._survivors.of(left).holder
            text = "" if holder is None or self.looks.waits else holder.text
            found[reading.storage] = reading.device, reading.storage_bytes, self.left.handle(identity), text
        return list(found.values())

    def expect_run(self) -> None:
        """Note which arrays are alive before a re-run begins."""
        self.left.expect_run()
        self._recognition.note_born()

    def note_kept_by_runner(self, keepers_of: Keepers) -> None:
        """Note what the test's runner alone keeps of earlier runs, as `keepers_of` tells."""
        born = self._recognition.born
        found = find_kept_by_runner(self.left, self._decided, self._detector, self._frameworks, born, keepers_of)
        self._kept |= {self._survivors.index_of(left): keeper for left, keeper in found}

    def recognise_late(self, *, among_old: bool = False) -> bool:
        """Recognise what all runs left, once a brief look has told that holders are of use; tell if none of it is garbage.

        With `among_old`, the heap is walked for what collections have made old.
        """
        recognition, living = self._recognition, self.left.living()
        if living and not recognition.covers(living):
            recognise = recognition.recognise_of_all_runs if among_old else recognition.recognise
            with self._guard(RECOGNISE):
                recognise(*self.left.living_by_age())
        return recognition.covers(living) or recognition.needs_no_collection(living)

    def settle(self, settle_steps: Iterable[SettleStep], threads: frozenset[int]) -> bool:
        """Take steps that `add_run` was not given, forget what they free and the last run's look; tell if any stays."""
        self.looks.forget_last()
        recognition = self._recognition
        if recognition.covers(self.left.by_id) or recognition.needs_no_collection(self.left.living()):
            settle_steps = steps_that_can_release(settle_steps, threads)
        settled = settle_late(self._noted(settle_steps), self.left.by_id, self.left.living)
        if settled.collected:
            recognition.try_again()
        self._first -= {self._survivors.index_of(left) for left in settled.garbage.values()}
        self._cycles += tuple(left.reading for i, left in settled.garbage.items() if i in settled.collected)
        self._doubt(settled)
        self.left.changed()
        self._evidence = None
        return bool(self.left.living())

    @property
    def may_hold_garbage(self) -> bool:
        """Whether a search has met an array that a cycle alone holds, in a heap that was not collected since the last run."""
        holders = (self._survivors.of(self.left.by_id[identity]).holder for identity in self.left.living())
        return not self.looks.collected and any(one is not None and one.root == CYCLE_ROOT for one in holders)

    @property
    def is_doubtful(self) -> bool:
        """Whether what grew in the first re-run may have replaced something: one more, from a collected heap, tells."""
        return bool(self._doubted) and self.left.runs == FIRST_RERUN

    def forget_doubts(self) -> None:
        """Take what is doubtful for replaced again, because no further re-run could tell."""
        if self.is_doubtful:
            self._first |= self._doubted
            self._doubted = frozenset()
            self._evidence = None

    @property
    def may_replace_garbage(self) -> bool:
        """Whether what died during the first re-run may have been garbage that the re-run replaced with nothing."""
        return self.left.runs == FIRST_RERUN and any(find_doubtful(*self._dead_and_new(), {}))

    def _doubt(self, settled: SettledLate) -> None:
        """Leave out what is doubtful of what died during the first re-run."""
        self._doubted = frozenset()
        if self.left.runs != FIRST_RERUN:
            return
        dead, new = self._dead_and_new()
        counterparts, unlike = find_doubtful(dead, new, settled.of_rerun)
        self._cycles += tuple(dead[index] for index in sorted(counterparts))
        self._doubted = frozenset(counterparts | unlike)
        self._first -= self._doubted
        self._doubted |= {self._survivors.index_of(left) for left in settled.may_be_replaced(new)}

    def _dead_and_new(self) -> tuple[dict[int, ArrayReading], list[ArrayReading]]:
        """Return what has died of the first run, by the survivors' indices, and what is alive of the re-run."""
        living = [self.left.by_id[identity] for identity in self.left.living()]
        alive = {self._survivors.index_of(left) for left in living}
        survivors = self._survivors.all()
        dead = {index: survivors[index].reading for index in self._first - alive - self._kept.keys()}
        return dead, [left.reading for left in living if left.run]

    def _noted(self, steps: Iterable[SettleStep]) -> Iterator[SettleStep]:
        for step in steps:
            self.looks.collected |= step.collects
            yield step

    def forget_reruns(self) -> None:
        """Forget all re-runs, because a re-run could not be recorded to its end."""
        self.left.forget_reruns()
        self._recognition.keep_only(self.left.by_id)
        self._kept.clear()
        self.looks.forget_all()

    def evidence(self) -> Evidence:
        """Return the evidence for `engine.judge.arrays.judge`: the same object until more is found."""
        if self._evidence is None:
            alive = [self._first, *self.looks.alive] if self.left.runs > 1 else [self._first]
            graphs = dict(self._graphs.by_root)
            self._evidence = Evidence(self._survivors.all(), tuple(alive), self._cycles, graphs, kept=dict(self._kept))
        return self._evidence

    def _forget_evidence(self) -> None:
        self._evidence = None

    def _take_in(self, left: Mapping[int, Leftover], handles: Mapping[int, StorageHandle]) -> None:
        self._evidence = None
        self.left.take_in(left, handles)
