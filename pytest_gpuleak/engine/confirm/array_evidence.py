"""Collect the arrays that each run of a suspect left behind, and find their holders."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.bulk import hold_arrays, lines_of_arrays, parts_of_arrays, read_arrays, read_united
from pytest_gpuleak.adapters.storages import SharedStorages
from pytest_gpuleak.engine.confirm.holder_search import count_graphs, count_users, find_left, search_holders
from pytest_gpuleak.engine.confirm.late_settling import settle_late
from pytest_gpuleak.engine.confirm.left_arrays import LeftArrays
from pytest_gpuleak.engine.confirm.recognition import Recognition
from pytest_gpuleak.engine.confirm.runner_holds import find_kept_by_runner
from pytest_gpuleak.engine.confirm.survivors import Leftover, Survivors
from pytest_gpuleak.engine.settle.steps import Settling, steps_that_can_release
from pytest_gpuleak.engine.stages import EXPLAIN, GRAPHS, READ, RECOGNISE
from pytest_gpuleak.heap.collector import collect
from pytest_gpuleak.heap.referrers import Deadline, PausedCollector
from pytest_gpuleak.heap.weak_references import has_weak_references
from pytest_gpuleak.model.evidence import Evidence, Keeper, Root, root_of
from pytest_gpuleak.model.findings import FREED, NO_OBJECT, WAITING, Holder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.adapters.protocol import ArrayFramework, OriginLog, SettleStep, StorageHandle
    from pytest_gpuleak.engine.confirm.runner_holds import Keepers
    from pytest_gpuleak.engine.detect.detector import Detector
    from pytest_gpuleak.engine.stages import Guard, Stage
    from pytest_gpuleak.explain.explanation import Explanation
    from pytest_gpuleak.explain.known_culprits import Culprits
    from pytest_gpuleak.model.findings import Autograd
    from pytest_gpuleak.model.readings import ArrayReading

EXPLAIN_BUDGET_S = 8.0
"""Seconds that all searches for the holders of one test's arrays may take, re-runs included."""

NOT_SEARCHED = "not searched for, since no report is written and notes are not shown (-v)"
"""Why the holder of a note is unknown."""


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
        self._culprits = culprits
        self._recognition = Recognition(detector, arrays, frameworks, culprits, self._note_graphs_of_recognised)
        self.left = LeftArrays(arrays)
        self._cycles = freed
        self._survivors = Survivors()
        self._graphs: dict[Root, Autograd] = {}
        self._alive: list[frozenset[int]] = []
        self._first: frozenset[int] = frozenset()
        self._kept: dict[int, Keeper] = {}
        self._decided = frozenset[int]()  # ids of what is no suspect
        self._postponed: tuple[OriginLog, set[int]] | None = None  # lines and shared storages, for a late search
        self.searches = 0
        """Searches of the whole heap so far."""
        self._evidence: Evidence | None = None
        self._collected = False  # whether the heap was collected since the last run
        self._explain_left_s = EXPLAIN_BUDGET_S

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
        """
        self._collected = False
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
        settled.run(steps_that_can_release(settle_steps, threads) if recognised else settle_steps)
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
            text = "" if holder is None or self.waits else holder.text
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

    def look(self, origins: OriginLog | None = None) -> None:
        """Note, after each run, which arrays are alive and who holds them; `origins` are the lines noted in a re-run."""
        looks = len(self._alive)
        with self._guard(EXPLAIN) as stage:
            if not self.left.by_id:
                self._note([], set(), {})
            elif self._recognised_where_they_are():
                self._look_at_recognised(origins or {})
            else:
                with self._detector.whole_heap(), PausedCollector():
                    self._look(origins or {})
        if len(self._alive) == looks:
            self._note_unexplained(self.left.living(), _unknown(f"the search failed: {stage.fault}"), origins or {})

    def look_briefly(self, origins: OriginLog | None = None) -> None:
        """Like `look`, but ask the weak handles alone: no holder is searched for."""
        self._note_unexplained(self.left.living(), _unknown(NOT_SEARCHED), origins or {})

    def recognise_late(self) -> None:
        """Recognise what all runs left, once a brief look has told that holders are of use."""
        living = self.left.living()
        if living and not self._recognition.covers(living):
            with self._guard(RECOGNISE):
                self._recognition.recognise(*self.left.living_by_age())

    def settle(self, settle_steps: Iterable[SettleStep], threads: frozenset[int]) -> bool:
        """Take steps that `add_run` was not given, forget what they free and the last run's look; tell if any stays."""
        self.forget_look()
        if self._recognition.covers(self.left.by_id):
            settle_steps = steps_that_can_release(settle_steps, threads)
        garbage, collected = settle_late(self._noted(settle_steps), self.left.by_id, self.left.living)
        self._first -= {self._survivors.index_of(left) for left in garbage.values()}
        self._cycles += tuple(left.reading for identity, left in garbage.items() if identity in collected)
        self.left.changed()
        self._evidence = None
        return bool(self.left.living())

    def _noted(self, steps: Iterable[SettleStep]) -> Iterator[SettleStep]:
        for step in steps:
            self._collected |= step.collects
            yield step

    def forget_look(self) -> None:
        """Forget the last look after a re-run, which another is to follow."""
        del self._alive[max(self.left.runs - 2, 0) :]
        self._evidence = self._postponed = None

    def forget_reruns(self) -> None:
        """Forget all re-runs, because a re-run could not be recorded to its end."""
        self.left.forget_reruns()
        self._recognition.keep_only(self.left.by_id)
        self._kept.clear()
        self._evidence = self._postponed = None
        self._alive.clear()

    def evidence(self) -> Evidence:
        """Return the evidence for `engine.judge.arrays.judge`: the same object until more is found."""
        if self._evidence is None:
            alive = [self._first, *self._alive] if self.left.runs > 1 else [self._first]
            self._evidence = Evidence(
                self._survivors.all(), tuple(alive), self._cycles, dict(self._graphs), kept=dict(self._kept)
            )
        return self._evidence

    @property
    def confirmed(self) -> bool:
        """Whether a re-run has been examined."""
        return bool(self._alive)

    def _take_in(self, left: Mapping[int, Leftover], handles: Mapping[int, StorageHandle]) -> None:
        self._evidence = None
        self.left.take_in(left, handles)

    def _note_graphs_of_recognised(self, arrays: Sequence[object], found: Sequence[Explanation]) -> None:
        with self._guard(GRAPHS):
            if not self._graphs:
                self._note_graphs(arrays, found, read_arrays(arrays, self._frameworks))

    def _recognised_where_they_are(self) -> bool:
        """Tell whether all arrays are recognised, each at the place where it still is."""
        living = self.left.living()
        if not living:  # no storage is, but `swap_tensors` gives the array that stays another: the handle knows the old
            return False
        if not self._recognition.covers(living):
            with self._guard(RECOGNISE):
                self._recognition.recognise_of_all_runs(*self.left.living_by_age())
            if not self._recognition.covers(living):
                return False
        if not self._recognition.one_place_holds_two_runs(self.left.by_id):
            return True
        if not self._collected:
            with self._detector.whole_heap():
                collect(2)
        return not self._recognition.has_outdated_place(self.left.by_id)

    def _look_at_recognised(self, origins: OriginLog) -> None:
        found = self._recognition.found
        living, shared = self._living_and_shared({i: found[i].users for i in self.left.living()})
        alive = [(self.left.by_id[identity], found[identity]) for identity in living]
        self._note([(left, recognised.explanation) for left, recognised in alive], shared, origins)

    def _living_and_shared(self, users: Mapping[int, int | None]) -> tuple[set[int], set[int]]:
        """Return the ids of the arrays that are alive, and the storages that other arrays use too.

        A handle tells whether the storage lives. Of arrays that use one with others, only the heap tells which are alive: it
        is walked unless `users`, the number of arrays that share each one's storage, rule that out.
        """
        living, left = self.left.living(), self.left.by_id
        ours = Counter(left[identity].reading.storage for identity in living)
        of_runs = {(left[identity].run, left[identity].reading.storage) for identity in living}
        counts = ((users.get(identity), ours[left[identity].reading.storage]) for identity in living)
        if len(of_runs) == len(ours) and all(count is not None and count <= own for count, own in counts):
            return living, set()
        with self._detector.whole_heap():
            targets, shared = find_left(left, self._frameworks, self._natives)
            living &= set(map(id, targets))
            targets.clear()
        return living, shared

    def look_without_search(self, origins: OriginLog | None = None) -> None:
        """Like `look`, but leave the search to a later one for many suspects, which calls `take_holders`."""
        self._postponed = origins or {}, self._look_at_heap(WAITING, origins or {})

    def look_at_shared(self, origins: OriginLog | None = None) -> None:
        """Like `look_briefly`, but ask the heap which of the arrays that share a storage with older ones are alive."""
        self._look_at_heap(_unknown(NOT_SEARCHED), origins or {})

    def _look_at_heap(self, unknown: Holder, origins: OriginLog) -> set[int]:
        living, shared = self.left.living(), set[int]()
        with self._guard(EXPLAIN):
            living, shared = self._living_and_shared(count_users(living, self._frameworks))
        self._note_unexplained(living, unknown, origins, shared)
        return shared

    @property
    def recognised(self) -> bool:
        """Whether known holders alone hold all that is alive."""
        return self._recognition.covers(self.left.living())

    @property
    def waits(self) -> bool:
        """Whether the holders of what is alive are still to be searched for, with those of other suspects."""
        return self._postponed is not None

    def take_holders(self, arrays: Sequence[object], found: Sequence[Explanation], deadline: Deadline) -> None:
        """Take what a later search has `found` on the living `arrays` that were left; `deadline` limits the graphs."""
        if self._postponed is None:
            return
        origins, shared = self._postponed
        self._postponed = self._evidence = None
        newest = self.left.runs - 1
        with self._guard(GRAPHS):
            self._note_graphs(arrays, found, self.left.readings(), deadline)
        explained = [(self.left.by_id[id(array)], why) for array, why in zip(arrays, found, strict=True)]
        self._survivors.note(explained, shared, origins, newest)
        living = self.left.living()
        for unknown, ids in ((NO_OBJECT, living.difference(map(id, arrays))), (FREED, self.left.by_id.keys() - living)):
            self._survivors.note_unexplained([self.left.by_id[i] for i in ids], unknown, {}, newest)

    def give_up(self, why: str) -> None:
        """Say `why` a later search has found nothing."""
        self._postponed = self._evidence = None
        self._survivors.note_unexplained(self.left.by_id.values(), _unknown(why), {}, self.left.runs - 1)

    def _note_unexplained(
        self, living: Collection[int], unknown: Holder, origins: OriginLog, shared: Collection[int] = ()
    ) -> None:
        self._evidence = self._postponed = None
        alive = [self.left.by_id[identity] for identity in living]
        self._alive.append(self._survivors.note_unexplained(alive, unknown, origins, self.left.runs - 1, shared))

    def _look(self, origins: OriginLog) -> None:
        from pytest_gpuleak.explain.search import BUDGET_S

        self.searches += 1
        targets, shared = find_left(self.left.by_id, self._frameworks, self._natives)
        # The largest arrays are shown, and in a crowd only the first paths are written in full.
        targets.sort(key=lambda target: -self.left.by_id[id(target)].reading.storage_bytes)
        culprits = None if self._culprits is None else self._culprits()
        deadline = Deadline(self._explain_left_s)
        explanations = search_holders(targets, culprits, self._natives, min(BUDGET_S, self._explain_left_s))
        if culprits is not None:
            culprits.note_search(self._explain_left_s - deadline.left())
        self._explain_left_s = deadline.left()
        found = [(self.left.by_id[id(target)], why) for target, why in zip(targets, explanations, strict=True)]
        with self._guard(GRAPHS):
            self._note_graphs(targets, explanations, self.left.readings())
        targets.clear()
        self._note(found, shared, origins)

    def _note_graphs(
        self,
        arrays: Sequence[object],
        explanations: Sequence[Explanation],
        readings: Mapping[int, ArrayReading],
        deadline: Deadline | None = None,
    ) -> None:
        """Note by root how much memory the autograd graphs behind the arrays of the earliest run among them retain."""
        runs = [self.left.by_id[id(array)].run if id(array) in self.left.by_id else self.left.runs for array in arrays]
        first = min(runs, default=0)
        groups: dict[Root, list[object]] = defaultdict(list)
        for array, explanation, run in zip(arrays, explanations, runs, strict=True):
            reading = readings.get(id(array))
            if reading is not None and run == first:
                groups[root_of(reading.device, explanation.holder)].append(array)
        self._graphs |= count_graphs(groups, self._natives, deadline)

    def _note(self, found: Sequence[tuple[Leftover, Explanation]], shared: set[int], origins: OriginLog) -> None:
        self._evidence = self._postponed = None
        self._alive.append(self._survivors.note(found, shared, origins, self.left.runs - 1))


def _unknown(why: str) -> Holder:
    return Holder("unknown", "", f"unknown: {why}")
