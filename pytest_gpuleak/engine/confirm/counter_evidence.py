"""Collect the counters of one suspect run by run: settle them, and record what the re-runs add.

Where only the host's memory grew, the re-run comes before the steps that walk the whole heap: most such growth is a first
use, which the next run does not repeat. What such a step frees, or a collection in the middle of the run, may be garbage of
earlier tests, by which this test's growth must not be made smaller. So of a run that began with such garbage the growth is
a bound (`Growth.at_most`), and one that began when all garbage had gone, which is exact, decides.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.bulk import read_arrays
from pytest_gpuleak.engine.judge.counters import BLOCK, CounterRun, HostLimits, explained, judge_counters, suspects
from pytest_gpuleak.engine.limits import SLACK_SHARE
from pytest_gpuleak.engine.settle.steps import CHEAP_STEPS, Waits, device_steps, full_collection
from pytest_gpuleak.heap.collector import full_collections
from pytest_gpuleak.model.readings import HOST, OUTSIDE, Growth

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_gpuleak.adapters.probe_protocol import HostGrowth
    from pytest_gpuleak.adapters.protocol import AllocationHistory, ArrayFramework, SettleStep
    from pytest_gpuleak.engine.runs import Runs
    from pytest_gpuleak.engine.subject import Suspect
    from pytest_gpuleak.model.evidence import Evidence
    from pytest_gpuleak.model.findings import Contribution, Finding


class CounterEvidence:
    """Collect what each run of a suspect added to the counters."""

    def __init__(self, suspect: Suspect, left: Runs) -> None:
        self._suspect = suspect
        self._left = left
        self._is_anew = False
        """Whether `_runs` begin with a re-run, which has set up wider fixtures."""
        self._runs: list[CounterRun] = []
        self._suspected: set[str] = set()
        self._grown: set[str] = set()
        self._first_is_unsettled = False
        self._is_bound = suspect.policy.confirm > 0
        """Whether the run's growth is read as a bound, since it began with garbage and another run decides."""
        self._collections = 0
        self._given_back: Mapping[str, int] = {}
        """Bytes that older arrays have given back in the last run, by device."""
        self._recording = False
        self.watched_growth: int | None = None
        """Unexplained growth of the host (bytes) above which a run that may have added arrays is settled; or None."""
        self.unexplained_host = 0
        """Bytes that the last run added to the host, as far as no array found so far explains them."""
        self.replaced_host = 0
        """Bytes of them that replaced older arrays which the collector does not track; of a first run, which is a bound."""
        self._hidden_host = 0
        self._histories: list[AllocationHistory] = []
        self._limits = {
            probe.name: HostLimits(probe.judges, probe.floor) for probe in suspect.tracker.counters.host_probes
        }

    def expect_run(self) -> None:
        """Prepare for a re-run."""
        began, self._collections = self._collections, full_collections()
        self._is_bound = began == self._collections

    def begin_anew(self) -> None:
        """Take this run for the first, unless that is suspected: it has set up wider fixtures that stay."""
        if not self._suspected:
            self._is_anew = True
            self._runs.clear()

    def add_run(self, growth: Growth) -> None:
        """Settle a run's counters and note what no array explains, unread arrays included."""
        self._given_back = {} if self._suspect.tracker.was_collected else self._of_older()
        older = self._suspect.tracker.untracked
        self._hidden_host = 0 if self._runs else older.let_go
        growth = self._settled(growth)
        self.replaced_host = older.credit if self._is_bound and not self._runs else 0
        if not self._runs:
            growth = self._without_library_states(growth)
        with self._suspect.tracker.detector.whole_heap() if self._room(growth) else contextlib.nullcontext():
            not_read = self._reveal(growth)
        self._grown = self._unexplained(growth)
        self._suspected |= self._grown
        self.unexplained_host = self._unexplained_host(growth)
        self._runs.append(CounterRun(growth, self._end_record(), not_read=not_read))
        self._collections = full_collections()

    def _of_older(self) -> Mapping[str, int]:
        if self._runs or self._is_anew:
            return self._left.given_back()
        return self._suspect.knowledge.older(self._suspect.tracker).let_go(())

    def forget_reruns(self) -> None:
        """Forget all re-runs, because a re-run could not be recorded to its end."""
        del self._runs[0 if self._is_anew else 1 :]

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record what the re-run within this context adds to the counters, if they grew before."""
        counters = self._suspect.tracker.counters
        self._histories = self._suspect.tracker.frameworks.allocation_histories() if self._suspected - {HOST} else []
        if HOST in self._grown and len(self._runs) > 1:
            self._recording = True
            with self._suspect.tracker.detector.whole_heap():
                counters.begin_record()
        try:
            with contextlib.ExitStack() as stack:
                for history in self._histories:
                    stack.enter_context(history)
                yield
        finally:
            self._end_record()
            self._take_blocks()

    def _take_blocks(self) -> None:
        histories, self._histories = self._histories, []
        if len(self._runs) < 2:
            return
        blocks: dict[str, tuple[Contribution, ...]] = {}
        for device in self._suspected - {HOST}:
            for history in histories:
                found = history.blocks_alive(device, self._suspect.knowledge.is_user_file)
                if found is not None:
                    blocks.setdefault(device, found)
        why_not = next(filter(None, (history.why_not for history in histories)), "its allocator keeps no history")
        no_history = dict.fromkeys(self._suspected - {HOST} - blocks.keys(), why_not)
        self._runs[-1] = dataclasses.replace(self._runs[-1], blocks=blocks, no_history=no_history)
        folder = self._suspect.knowledge.snapshots
        for history in histories:
            try:
                if folder is not None:
                    history.save(folder, self._suspect.subject.nodeid)
            except OSError as error:
                self._suspect.knowledge.safeguards.tell(
                    f"no snapshot could be written to {folder}: {error.strerror or error}"
                )

    def _end_record(self) -> dict[str, HostGrowth]:
        if not self._recording:
            return {}
        self._recording = False
        with self._suspect.tracker.detector.whole_heap():
            return self._suspect.tracker.counters.end_record()

    @property
    def wants_rerun(self) -> bool:
        """Whether one more run is needed: memory grew again, or may have, and no record says why."""
        if len(self._runs) < 2:  # a record waits for a re-run, since it slows a run two to four times
            return False
        if HOST in self._grown and not any(run.host for run in self._runs):
            return True
        return bool(self._grown - {HOST}) and bool(self._suspect.tracker.frameworks.allocation_histories())

    @property
    def explained(self) -> bool:
        """Whether arrays explain all growth so far."""
        return not self._suspected

    def judge(self, evidence: Evidence, known_host: int = 0) -> tuple[Finding, ...]:
        """Return the findings on what no array explains; `known_host` bytes of the host's growth a run are explained."""
        # Arrays that explained growth when it was read may be gone by now.
        limits = self._limits if HOST in self._grown else {}
        return judge_counters(self._runs, evidence, self._suspect.policy, limits, known_host) if self._runs else ()

    def _unexplained(self, growth: Growth) -> set[str]:
        return suspects(growth, self._known(growth), self._suspect.policy, self._limits)

    def _known(self, growth: Growth) -> Counter[str]:
        """Return the bytes that arrays explain of the last run's growth, with the rests of their blocks where these count."""
        moved = self._left.moved()
        known = explained(*moved)
        rounded = {device for device in growth.devices if (device, "requested") not in growth.bytes}
        for arrays, sign in zip(moved, (1, -1), strict=True):
            places = (place for one in arrays for place in one.reading.places() if place[0] in rounded)
            for device, size in places:
                known[device] += sign * (-size % BLOCK)
        return known

    def _unexplained_host(self, growth: Growth) -> int:
        # Every host counter includes CPU tensors.
        return growth.host - self._known(growth)[HOST] - growth.imported - growth.compiled

    def _settled(self, growth: Growth) -> Growth:
        """Settle, and return the growth that remains. Never more than at first: later growth is the plugin's own."""
        growth = self._bounded(growth)
        # Unread arrays are searched for on the whole heap, so rule out first what a young collection frees.
        # The devices first: clearing a workspace takes microseconds, a full collection a tenth of a second.
        if self._may_go(growth):
            cheap = (*device_steps(self._suspect.knowledge.safeguards, self._suspect.tracker.frameworks), *CHEAP_STEPS)
            growth = self._lowest(growth, cheap, self._may_go)
            # Those of the run's own tensors, for which the heap need not be thawed: where they explain all, it stays so.
            self._reveal(growth)
        if not self._unexplained(growth):
            return growth
        self._is_bound = self._is_bound and not self._suspect.subject.why_not_again()
        if not self._runs:
            self._first_is_unsettled = self._is_bound and self._is_of_host(growth)
            if self._first_is_unsettled:
                return growth
        full = self._full_steps()
        return self._lowest(growth, full, lambda now: bool(self._unexplained(now)))

    def _lowest(self, growth: Growth, steps: Iterable[SettleStep], matters: Callable[[Growth], bool]) -> Growth:
        """Take settle steps as long as what is left of the growth matters."""
        for step in steps:
            for _ in step.steps():
                growth = growth.lowest(self._bounded(self._suspect.tracker.counters.end()))
                if not matters(growth):
                    return growth
        return growth

    def _bounded(self, growth: Growth) -> Growth:
        if self._is_bound:
            growth = growth.at_most().plus({"cpu": self._hidden_host})
        return growth.plus(self._given_back)

    def _full_steps(self) -> tuple[SettleStep, ...]:
        collections = () if self._left.collected else (full_collection(self._suspect.knowledge.safeguards),)
        return (*collections, *self._suspect.subject.settle_steps(), Waits(self._suspect.tracker.threads))

    def _is_of_host(self, growth: Growth) -> bool:
        """Tell whether no device's allocator has grown, so that the re-run comes before what walks the whole heap.

        The first test to use a kernel of CUDA adds its module to the heap, 10 to 170 MiB, and to the device, as each test
        after it for its own.
        """
        inside = growth._replace(bytes={key: size for key, size in growth.bytes.items() if key[1] != OUTSIDE})
        return self._unexplained(inside) <= {HOST}

    def _without_library_states(self, growth: Growth) -> Growth:
        """Leave out what a library keeps for the whole process: the test that uses it first has leaked nothing."""
        known, met = self._known(growth), self._suspect.knowledge.library_states
        for device in self._unexplained(growth) - {HOST}:
            for size in self._suspect.tracker.frameworks.library_states(device):
                if (device, size) not in met and growth.of(device) - known[device] >= size:
                    met.add((device, size))
                    growth = growth.without(device, size)
        return growth

    def _may_go(self, growth: Growth) -> bool:
        """Tell whether growth is left that matters, so that a collection of what is young is worth a try."""
        if self._unexplained(growth) or self._room(growth):
            return True
        watched = self.watched_growth
        if watched is None or not self._suspect.tracker.may_have_added_arrays:
            return False
        unexcused = growth.imported - growth.excused(self._suspect.policy.confirm)
        return self._unexplained_host(growth) + unexcused > watched

    def _reveal(self, growth: Growth) -> frozenset[str]:
        """Give unread arrays of visible ones, which C++ alone knows, to the runs where the counters have room for them.

        Return the devices on which some could not be read.
        """
        room = self._room(growth)
        if not room:
            return frozenset()
        # One search for all devices: reading creates Python objects, which a second search would count as known.
        frameworks = self._suspect.tracker.frameworks
        unread, not_read = frameworks.unread_arrays(set(room))
        for device, arrays in unread.items():
            # A device's counter is exact; the host's counts every object that the test has made, and what modules and
            # programs take of its growth is an estimate.
            slack = room[device] // SLACK_SHARE + growth.imported + growth.compiled if device == "cpu" else 0
            self._left.add_hidden(share_of(arrays, room[device], slack, frameworks.arrays))
        return frozenset(not_read)

    def _room(self, growth: Growth) -> dict[str, int]:
        """Return by device the bytes that no array explains and that unread arrays may hold."""
        known = self._known(growth)
        room = {device: growth.of(device) - known[device] for device in growth.devices}
        unexplained = self._unexplained_host(growth)
        # Before the first run is settled, gradients are searched for only where it may have made any.
        if unexplained >= self._suspect.policy.retained_bytes and (
            self._runs or not self._first_is_unsettled or self._suspect.tracker.may_have_made_gradients
        ):
            room["cpu"] = unexplained
        return {device: size for device, size in room.items() if size > 0}


def share_of(arrays: list[object], size: int, slack: int, frameworks: Sequence[ArrayFramework]) -> list[object]:
    """Choose, largest first, the arrays that together explain `size` bytes, or none if they explain less than half.

    When an unread array was made is unknown, so size decides: an earlier test's array does not fit into this growth.
    """
    readings = read_arrays(arrays, frameworks)
    sized = sorted((one for one in arrays if id(one) in readings), key=lambda one: -readings[id(one)].storage_bytes)
    chosen, taken = [], 0
    for array in sized:
        storage_bytes = readings[id(array)].storage_bytes
        if taken + storage_bytes <= size + slack:
            taken += storage_bytes
            chosen.append(array)
    return chosen if taken >= size / 2 else []
