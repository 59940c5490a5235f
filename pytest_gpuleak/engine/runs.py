"""Keep what each run of one suspect left, as readings and weak handles, and how each array died. No array is held."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.arrays import array_types, find_arrays, framework_of, select_arrays
from pytest_gpuleak.adapters.bulk import (
    Held,
    hold_arrays,
    lines_of_arrays,
    parts_of_arrays,
    read_and_hold,
    read_arrays,
    read_united,
    storages_of,
)
from pytest_gpuleak.adapters.storages import SharedStorages
from pytest_gpuleak.engine.deaths import Left, alive_after, collected_in, doubt_older, garbage_of_first, let_go_in
from pytest_gpuleak.engine.judge.counters import moved
from pytest_gpuleak.engine.settle.steps import CHEAP_STEPS, Settling, rounds
from pytest_gpuleak.engine.stages import READ
from pytest_gpuleak.engine.survivors import Survivors
from pytest_gpuleak.heap.collector import calling, get_objects
from pytest_gpuleak.heap.safe_access import has_weak_references
from pytest_gpuleak.heap.threads import others_work, running_threads
from pytest_gpuleak.model.evidence import Evidence, Keeper
from pytest_gpuleak.model.readings import bytes_by_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_gpuleak.adapters.protocol import SettleStep
    from pytest_gpuleak.engine.deaths import Cause
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.stages import Guard, Stage
    from pytest_gpuleak.model.evidence import Survivor
    from pytest_gpuleak.model.readings import ArrayReading


class Runs:
    """What the runs of one suspect left. `freed` were garbage of the first run; `guard` the context of a stage.

    Attributes:
        count: the runs that have ended, one made for its lines alone included.
        collected: whether the whole heap was collected since the last run.
        settled: whether all settle steps were taken since the last run: what is alive now is no garbage.
        survivors: the storages left so far, with who holds each.
        rebuilds: see `Evidence`.
        freed_by_setup: see `Evidence`.
    """

    def __init__(
        self,
        tracker: RunTracker,
        guard: Callable[[Stage], Guard],
        freed: Sequence[ArrayReading] = (),
    ) -> None:
        self.rebuilds = False
        self.freed_by_setup = False
        self._tracker = tracker
        self._guard = guard
        self._cycles = tuple(freed)
        self._left: list[Left] = []
        self._older: list[Left] = []
        self._under_way = True
        self._traced: int | None = None
        self._failed = False
        self._exact: set[int] = set()
        self._threads = frozenset[int]()
        self._kept: dict[int, Keeper] = {}
        self._kept_before = frozenset[int]()
        self._moved: tuple[list[Survivor], list[Survivor]] | None = None
        self._looked = False
        self.count = 0
        self.collected = False
        self.settled = False
        self.survivors = Survivors()

    # The runs.

    def end_run(
        self, arrays: list[object], is_user_file: Callable[[str], bool], young: Sequence[SettleStep] = CHEAP_STEPS
    ) -> None:
        """Take what a run left: strong references, emptied here. Frees what a young collection frees, by the steps `young`.

        `is_user_file` tells a user's source files, for the lines that arrays themselves know.
        """
        self.poll("count")
        if any(left.cause for left in self._older) and (others_work() or not self._threads <= running_threads()):
            doubt_older(self._older, self.count)
        tracker, known = self._tracker, self._tracker.guarded_arrays
        readings = read_united(arrays, known)
        shared = SharedStorages(arrays, tracker.frameworks.storages)
        arrays[:] = [array for array in arrays if id(array) in readings]
        # An array without weak references cannot be found again, so hold it first.
        handles = hold_arrays([array for array in arrays if not has_weak_references(array)], known)
        settled = Settling(arrays, tracker.threads, threaded=tracker.threaded)
        settled.run(young)
        if settled.alive:
            with self._guard(READ):
                settled.leave_out(parts_of_arrays(settled.found(), known))
        handles |= hold_arrays(settled.found(), known)
        settled.alive &= handles.keys()
        # Again, of what stays: arrays were still being computed, and parts of others were among them.
        readings |= read_united(list(settled.found()), known)
        late = list(shared.left())
        outlived = read_arrays(late, known)
        handles |= hold_arrays(late, known)
        late.clear()
        if self.count == 0:
            kept = {reading.storage for reading in outlived.values()}
            self._cycles += tuple(one for i in settled.cycles if (one := readings[i]).storage not in kept)
        readings |= outlived
        alive = settled.alive | outlived.keys()
        users = self._users(settled.found())
        self.poll("count")  # what a young collection frees was alive when the run before it had ended
        self._take_in(self.count, {i: Held(handles[i], readings[i]) for i in alive if i in handles}, users)
        if settled.alive:
            for identity, line in lines_of_arrays(settled.found(), known, is_user_file).items():
                self.survivors.note_line(self.survivors.index_of(self.count, readings[identity]), line)
        self.count += 1
        self._under_way = self.collected = self.settled = False

    def add_hidden(self, arrays: list[object]) -> None:
        """Note arrays (emptied here) that the last run has left and that had no Python object before."""
        found = read_and_hold(arrays, self._tracker.guarded_arrays)
        arrays.clear()
        self._take_in(self.count - 1, found, {})

    def _take_in(self, run: int, found: Mapping[int, Held], users: Mapping[int, int | None]) -> None:
        for identity, held in found.items():
            by_object = getattr(held.handle, "array", None) is not None  # it knows whether the array itself lives
            count = users.get(identity, 1)
            shared = not by_object and (count is None or count > 1)
            self._left.append(Left(run, held, self.survivors.index_of(run, held.reading), shared=shared))
        self._moved = None

    def _users(self, arrays: Iterator[object]) -> dict[int, int | None]:
        known = self._tracker.guarded_arrays
        return {id(array): framework_of(array, known).storage_users(array) for array in arrays}

    def begin_run(self, older: Iterable[Held], *, traced: bool = False) -> None:
        """Prepare for a re-run; `older` arrays are followed with those of the runs. One that is `traced` decides nothing."""
        self.poll("count")
        self._under_way, self._looked = True, False
        if traced:
            self._traced = self.count
        if self.settled:
            self._exact.add(self.count)
        self._older = [left for left in self._older if left.cause is not None] + self.others(older)
        self._moved = None
        self.collected = self.settled = False
        self._threads = running_threads()

    def fail_run(self) -> None:
        """Note that the re-run did not pass: the first run is judged, less what a settling frees from now on."""
        self.poll("count")
        self._failed = self.count == 1
        self.freed_by_setup = False

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """Within the context, mark what a collection of the whole heap frees: garbage, or replaced through a cycle."""
        alone = True

        def on_collection(phase: str, info: dict[str, int]) -> None:
            nonlocal alone
            if info["generation"] != 2:
                return
            if phase == "start":
                alone = self._is_alone()
                self.poll("count")
            else:
                self.poll("collection" if alone else "settled")

        with calling(on_collection):
            yield

    def settle(self, steps: Iterable[SettleStep]) -> None:
        """Take settle steps while anything is alive, those that collect again as long as they free something."""
        self._looked = False
        for step in steps:
            if not self.living():
                break
            cause: Cause = "collection" if step.collects and self._is_alone() else "settled"
            self.collected |= step.collects

            def alive(cause: Cause = cause) -> int:
                self.poll(cause, settling=True)
                return len(self.living())

            for _ in rounds(step, alive):
                pass
            self.poll(cause, settling=True)
        self.settled = True

    def _is_alone(self) -> bool:
        """Tell whether no thread of the last run works. An array that dies beside one may have been its argument: no cycle."""
        if not self._tracker.threaded:
            return True
        alone = running_threads() <= self._tracker.threads
        self.poll("settled")  # a thread that has ended has taken along what it held
        return alone

    def poll(self, cause: Cause, *, settling: bool = False) -> None:
        """Ask the weak handles what has died since the last call: of the `cause`."""
        for among in (self._left,) if self._failed else (self._left, self._older):
            gone = [left for left in among if left.cause is None and not left.held.handle.alive()]
            for left in self._without_saved(gone) if settling and gone else gone:
                self._note_death(left, cause)

    def _without_saved(self, gone: list[Left]) -> list[Left]:
        """Follow what a finalizer has stored: a collection clears weak references before it calls finalizers."""
        saved = self.objects(gone, hidden=True)
        handles = hold_arrays(saved, self._tracker.guarded_arrays)
        saved.clear()
        for left in gone:
            if left.held.reading.identity in handles:
                left.held = left.held._replace(handle=handles[left.held.reading.identity])
        return [left for left in gone if left.held.reading.identity not in handles]

    def _note_death(self, left: Left, cause: Cause) -> None:
        # After a re-run that failed the first run is judged, less what the settling frees.
        of_first = self._failed and cause != "count"
        left.cause, left.died_in = cause, 0 if of_first else self.count - (not self._under_way)
        self._moved = None

    def forget_shared_dead(self) -> None:
        """Look for arrays that share their storages, whose handles cannot tell: the storage lives on without the array.

        Not again where nothing has run since the last look.
        """
        if self._looked:
            return
        self._looked = True
        among: dict[int, list[Left]] = defaultdict(list)
        for left in self.living():
            if left.shared:
                among[left.held.reading.identity].append(left)
        living = set(map(id, self.objects((same[-1] for same in among.values()), hidden=True))) if among else ()
        # A later array may have the id of one that died.
        dead = [left for i, same in among.items() for left in (same[:-1] if i in living else same)]
        used = self._used_by_arrays(dead)
        for left in dead:
            if used.isdisjoint((left.held.handle.storage, left.held.reading.storage)):
                left.shared = False  # C++ alone keeps it, as a graph does its results: the handle tells when that goes
            else:
                self._note_death(left, "count")
        if not self.collected:  # else it may have been garbage
            self._match_aliases(dead)

    def _match_aliases(self, dead: Sequence[Left]) -> None:
        """Have an array of the last run take the place of one of its storage that died, while another of that run keeps it."""
        new: dict[int, list[Left]] = defaultdict(list)
        for left in self.living(of_last=True):
            new[left.held.handle.storage].append(left)
        alive = {left.index for left in self.living()}
        for left in dead:
            same = new[left.held.handle.storage]
            if same and left.cause and left.run < self.count - 1 and left.index in alive:
                same.pop().index = left.index

    def _used_by_arrays(self, dead: Sequence[Left]) -> set[int]:
        """Return the keys of storages that arrays use, among them those of the `dead` that live on with an array."""
        died, known = set(map(id, dead)), self._tracker.guarded_arrays
        used = {left.held.handle.storage for left in self.living() if id(left) not in died}
        if used.issuperset(left.held.handle.storage for left in dead):
            return used
        with self._tracker.detector.whole_heap():
            arrays = select_arrays(get_objects(), array_types(known))
        # Not `storages_of`: objects of storages are among them, which have no reading where a tensor shares them.
        used.update(reading.storage for reading in read_arrays(arrays, known).values())
        arrays.clear()
        return used

    def forget_reruns(self) -> None:
        """Forget all re-runs, because a re-run could not be recorded to its end."""
        self._left = [left for left in self._left if left.run == 0 and left.died_in <= 0]
        self.count = min(self.count, 1)
        self._under_way = self.freed_by_setup = False
        self._moved = self._traced = None
        self._older = [left for left in self._older if left.cause is None]
        self._kept = {index: by for index, by in self._kept.items() if index in self._kept_before}
        self._exact.clear()

    # What is known of them.

    def living(self, *, of_last: bool = False) -> list[Left]:
        """Return what is alive, or what is alive of the last run."""
        return [left for left in self._left if left.cause is None and (not of_last or left.run == self.count - 1)]

    def others(self, older: Iterable[Held]) -> list[Left]:
        """Return the older arrays whose storages no run has left."""
        own = {(left.held.reading.device, left.held.handle.storage) for left in self.living()}
        return [Left(-1, held, -1) for held in older if (held.reading.device, held.handle.storage) not in own]

    def suspects(self, *, of_last: bool = False) -> list[Left]:
        """Return what is alive, or what is alive of the last run, and not kept by the test's runner alone."""
        return [left for left in self.living(of_last=of_last) if left.index not in self._kept]

    def staying(self) -> Iterable[Left]:
        """Return what is alive, each storage once, but for what goes with the frames that hold it."""
        return {
            left.held.reading.storage: left for left in self.living() if self._kept.get(left.index) != "frames"
        }.values()

    def every(self) -> list[Left]:
        """Return all that runs have left, also what is gone."""
        return self._left

    @property
    def deciding(self) -> int:
        """The number of runs that decide: one made for its lines alone does not."""
        return self.count if self._traced is None else min(self.count, self._traced)

    @property
    def causes(self) -> set[Cause]:
        """What has freed arrays of the first run."""
        return {left.cause for left in self._left if left.run == 0 and left.cause is not None}

    @property
    def all_gone(self) -> bool:
        """Whether arrays were left, no suspect is alive, and no collection or settling has freed any of them."""
        return bool(self._left) and not self.suspects() and self.causes <= {"count"}

    @property
    def lets_go(self) -> bool:
        """Whether the re-run under way has let go of something that an earlier one left."""
        return any(left.died_in == self.count for left in self._left)

    def objects(self, wanted: Iterable[Left], *, hidden: bool = False) -> list[object]:
        """Return the arrays of these, as strong references: drop them before user code runs.

        With `hidden` also those that are not visible: to find these walks the heap.
        """
        by_id = {left.held.reading.identity: left for left in wanted}

        def left_among(arrays: list[object]) -> list[object]:
            keys = storages_of(arrays, self._tracker.guarded_arrays)
            return [array for array in arrays if by_id[id(array)].is_at(id(array), keys[id(array)])]

        found = left_among(find_arrays(set(by_id), get_objects(), array_types(self._tracker.guarded_arrays)))
        return left_among(self._tracker.detector.find(set(by_id))) if hidden and len(found) < len(by_id) else found

    def note_kept(self, keepers: Mapping[int, Keeper]) -> None:
        """Note what the test's runner alone keeps of earlier runs, by the survivors' indices; once before a re-run that counts, too."""
        self._kept |= keepers
        if self.count == 1 + self.rebuilds:
            self._kept_before = frozenset(keepers)

    def moved(self) -> tuple[list[Survivor], list[Survivor]]:
        """Return the storages that the last run has left, and those of earlier runs that have gone in it."""
        if self._moved is None:
            self._moved = moved(self.evidence(), self.count - 1)
        return self._moved

    def evidence(self, **beside: Any) -> Evidence:
        """Return the evidence for `engine.judge.arrays.judge`, with fields that are known `beside`."""
        alive = tuple(alive_after(self._left, run) for run in range(self.count))
        now = {left.index for left in self.living()}
        collected = collected_in(self._left, self._exact)
        older_gone: dict[int, list[ArrayReading]] = defaultdict(list)
        let_go, doubtful = let_go_in(self._older, self._exact)
        for left in let_go:
            older_gone[left.died_in].append(left.held.reading)
        traced = self._traced if self._traced is not None and self._traced < self.count else None
        return Evidence(
            self.survivors.all(),
            alive,
            (*self._cycles, *(one.held.reading for one in garbage_of_first(self._left))),
            kept=dict(self._kept),
            kept_before=self._kept_before,
            collected={run: frozenset(gone - now) for run, gone in collected.items()},
            older_gone={run: tuple(gone) for run, gone in older_gone.items()},
            older_doubtful=frozenset(doubtful),
            exact=frozenset(self._exact),
            rebuilds=self.rebuilds,
            freed_by_setup=self.freed_by_setup,
            traced=traced,
            **beside,
        )

    def given_back(self) -> Counter[str]:
        """Return by device the bytes of the older arrays that the last run, a re-run, has let go by their reference counts."""
        run = self.count - 1
        return bytes_by_device(one.held.reading for one in self._older if one.cause == "count" and one.died_in == run)

    def of_reruns(self) -> set[int]:
        """Return the storages of older arrays that died in re-runs: the first run has not let them go."""
        return {left.held.reading.storage for left in let_go_in(self._older, self._exact)[0]}
