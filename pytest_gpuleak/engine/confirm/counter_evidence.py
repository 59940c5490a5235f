"""Collect the counters of one suspect run by run: settle them, and record what the re-runs add."""

from __future__ import annotations

import contextlib
import dataclasses
from time import process_time
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.bulk import read_arrays
FIRST_RERUN = 2
from pytest_gpuleak.engine.confirm.walk_limits import comes_before_rerun, may_record_beside_leak
from pytest_gpuleak.engine.judge.counters import ARRAY_OBJECTS, BLOCK, CounterRun, HostLimits, judge_counters, suspects
from pytest_gpuleak.engine.settle.steps import (
    Collection,
    Waits,
    YoungCollection,
    device_steps,
    full_collection,
    paced,
)
from pytest_gpuleak.model.readings import HOST, OUTSIDE, Growth

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuleak.adapters.probe_protocol import HostGrowth
    from pytest_gpuleak.adapters.protocol import AllocationHistory, ArrayFramework
    from pytest_gpuleak.engine.runs import Runs
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.engine.subject import Subject
    from pytest_gpuleak.model.evidence import Evidence
    from pytest_gpuleak.model.findings import Contribution, Finding
    from pytest_gpuleak.model.policy import Policy


SLACK_SHARE = 16
"""Tolerance (1/16): arrays may exceed the growth by this part, because something small was freed meanwhile."""


class CounterEvidence:
    """Collect what each run of a suspect added to the counters."""

    def __init__(self, tracker: RunTracker, knowledge: SessionKnowledge, subject: Subject, policy: Policy) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self._subject = subject
        self._policy = policy
        self._runs: list[CounterRun] = []
        self._suspected: set[str] = set()
        self._recording = False
        self._grew_again = self._host_grew_again = False
        self._first_was_brief = False
        self._beside_leak = self._leaves_host = False
        self.watched_growth: int | None = None
        """Unexplained growth of the host (bytes) above which a run is settled, for evidence that takes it; or None."""
        self.unexplained_host = 0
        """Bytes that the last run added to the host, as far as no array found so far explains them."""
        self._histories: list[AllocationHistory] = []
        self._limits = {probe.name: HostLimits(probe.judges, probe.floor) for probe in tracker.counters.host_probes}

    def add_run(self, investigation: Runs, growth: Growth) -> bool:
        """Settle a run's counters and note them; return whether arrays, also unread, leave growth unexplained."""
        growth = self._settled(investigation, growth)
        if not self._runs:
            growth = self._without_library_states(investigation, growth)
        grown = self._unexplained(investigation, growth)
        not_read = self._reveal(investigation, growth)
        if grown:
            grown = self._unexplained(investigation, growth)
        self.unexplained_host = self._unexplained_host(investigation, growth)
        self._suspected |= grown
        self._grew_again = bool(grown) and bool(self._runs)
        self._host_grew_again = self._grew_again and HOST in grown
        self._runs.append(CounterRun(growth, self._end_record(), not_read=not_read))
        return bool(grown) or investigation.left_arrays

    def forget_reruns(self) -> None:
        """Forget all re-runs, because a re-run could not be recorded to its end."""
        del self._runs[1:]

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record what the re-run within this context adds to the counters, if they grew before."""
        counters = self._tracker.counters
        self._histories = self._tracker.frameworks.allocation_histories() if self._suspected - {HOST} else []
        began = process_time()
        records = self._host_grew_again and not self._leaves_host
        if records:
            self._recording = True
            with self._tracker.detector.whole_heap():
                counters.begin_record()
        try:
            with contextlib.ExitStack() as stack:
                for history in self._histories:
                    stack.enter_context(history)
                yield
        finally:
            self._end_record()
            self._take_blocks()
            if records and self._beside_leak:
                self._knowledge.leak_records_s += process_time() - began

    def choose_record(self, *, beside_leak: bool) -> None:
        """Choose whether one more run is recorded for the host's memory; `beside_leak`, arrays fail the test already.

        Then the record only adds to what is known, at a re-run and two walks over the heap: once few seconds have gone
        on such records, what the host's memory adds is a note until that leak is mended.
        """
        self._beside_leak = beside_leak
        self._leaves_host = beside_leak and not may_record_beside_leak(self._knowledge, self._subject.expected_s)

    def _take_blocks(self) -> None:
        histories, self._histories = self._histories, []
        if len(self._runs) < FIRST_RERUN:
            return
        blocks: dict[str, tuple[Contribution, ...]] = {}
        for device in self._suspected - {HOST}:
            for history in histories:
                found = history.blocks_alive(device, self._knowledge.is_user_file)
                if found is not None:
                    blocks.setdefault(device, found)
        self._runs[-1] = dataclasses.replace(self._runs[-1], blocks=blocks)
        folder = self._knowledge.snapshots
        for history in histories:
            try:
                if folder is not None:
                    history.save(folder, self._subject.nodeid)
            except OSError as error:
                self._knowledge.safeguards.tell(f"no snapshot could be written to {folder}: {error.strerror or error}")

    def _end_record(self) -> dict[str, HostGrowth]:
        if not self._recording:
            return {}
        self._recording = False
        with self._tracker.detector.whole_heap():
            return self._tracker.counters.end_record()

    @property
    def wants_record(self) -> bool:
        """Whether one more run is worth recording, which takes seconds: the host grew again, and no record says why.

        Or growth after a brief look: only from then on is each run settled before the next one begins.
        """
        unsettled = self._first_was_brief and self._grew_again and len(self._runs) == FIRST_RERUN
        if self._leaves_host and self.host_alone:
            return False
        return unsettled or (self._host_grew_again and not any(run.host for run in self._runs))

    @property
    def explained(self) -> bool:
        """Whether arrays explain all growth so far."""
        return not self._suspected

    @property
    def host_alone(self) -> bool:
        """Whether no device's memory has grown."""
        return self._suspected <= {HOST}

    def judge(self, evidence: Evidence, known_host: int = 0) -> tuple[Finding, ...]:
        """Return the findings on what no array explains; `known_host` bytes of the host's growth a run are explained."""
        found = judge_counters(self._runs, evidence, self._policy, self._limits, known_host) if self._runs else ()
        return tuple(map(_as_note, found)) if self._leaves_host else found

    def _unexplained(self, investigation: Runs, growth: Growth) -> set[str]:
        return suspects(growth, self._known(investigation), self._policy, self._limits)

    def _known(self, investigation: Runs) -> dict[str, int]:
        sizes, arrays = investigation.added()
        return {**sizes, HOST: sizes.get("cpu", 0) + ARRAY_OBJECTS * arrays}

    def _settled(self, investigation: Runs, growth: Growth) -> Growth:
        """Settle, and return the growth that remains. Never more than at first: later growth is the plugin's own."""
        tracker, counters, safeguards = self._tracker, self._tracker.counters, self._knowledge.safeguards
        # Unread arrays are searched for on the whole heap, so rule out first what a young collection frees.
        if not self._may_go(investigation, growth):
            return growth
        # The devices first: clearing a workspace takes microseconds, a full collection a tenth of a second.
        for step in (*device_steps(safeguards, tracker.frameworks), Collection(1), YoungCollection()):
            for _ in paced(step.steps()):
                growth = growth.lowest(counters.end())
            if not self._may_go(investigation, growth):
                return growth
        if not self._runs:
            self._first_was_brief = self._may_be_brief(investigation, growth)
        if self._is_brief:
            return growth
        # What the first run left goes now too, which would hide what this one left: one more run decides.
        frees_more = self._first_was_brief and len(self._runs) == 1
        collections = () if investigation.collected else (full_collection(safeguards),)
        for step in (*collections, *self._subject.settle_steps(), Waits(tracker.threads)):
            if not self._unexplained(investigation, growth):
                return growth
            for _ in paced(step.steps()):
                if frees_more:
                    continue
                growth = growth.lowest(counters.end())
                if not self._unexplained(investigation, growth):
                    return growth
        return growth

    @property
    def _is_brief(self) -> bool:
        return self._first_was_brief and not self._runs

    def _may_be_brief(self, investigation: Runs, growth: Growth) -> bool:
        """Tell whether the re-run comes before what walks the whole heap: it shows at once that a first use is no growth.

        The first test to use a kernel of CUDA adds its module to the heap, 10 to 170 MiB, and to the device, as each test
        after it for its own.
        """
        comes_first = (
            comes_before_rerun(self._knowledge) and not investigation.left_arrays
        )  # which are run again anyway
        if not self._policy.confirm or comes_first:
            return False
        inside = growth._replace(bytes={key: size for key, size in growth.bytes.items() if key[1] != OUTSIDE})
        return self._unexplained(investigation, inside) <= {HOST}

    def _without_library_states(self, investigation: Runs, growth: Growth) -> Growth:
        """Leave out what a library keeps for the whole process: the test that uses it first has leaked nothing."""
        known, met = self._known(investigation), self._knowledge.library_states
        for device in self._unexplained(investigation, growth) - {HOST}:
            for size in self._tracker.frameworks.library_states(device):
                if (device, size) not in met and growth.of(device) - known.get(device, 0) >= size:
                    met.add((device, size))
                    growth = growth.without(device, size)
        return growth

    def _may_go(self, investigation: Runs, growth: Growth) -> bool:
        """Tell whether growth is left that matters, so that a collection of what is young is worth a try."""
        watched = self.watched_growth
        return bool(
            self._unexplained(investigation, growth)
            or self._room(investigation, growth)
            or (watched is not None and self._unexplained_host(investigation, growth) > watched)
        )

    def _unexplained_host(self, investigation: Runs, growth: Growth) -> int:
        # Every host counter includes CPU tensors.
        known = self._known(investigation).get(HOST, 0)
        return growth.host - known - growth.imported - growth.compiled

    def _reveal(self, investigation: Runs, growth: Growth) -> frozenset[str]:
        """Give unread arrays, which C++ alone knows, to the investigation where the counters have room for them.

        Return the devices on which some could not be read.
        """
        room = self._room(investigation, growth)
        if not room:
            return frozenset()
        # One search for all devices: reading creates Python objects, which a second search would count as known.
        frameworks = self._tracker.frameworks
        unread, not_read = frameworks.unread_arrays(set(room))
        for device, arrays in unread.items():
            # A device's counter is exact; the host's counts every object that the test has made, and what modules and
            # programs take of its growth is an estimate.
            slack = room[device] // SLACK_SHARE + growth.imported + growth.compiled if device == "cpu" else 0
            investigation.add_hidden(share_of(arrays, room[device], slack, frameworks.arrays))
        return frozenset(not_read)

    def _room(self, investigation: Runs, growth: Growth) -> dict[str, int]:
        """Return by device the bytes that no array explains and that unread arrays may hold."""
        known = self._known(investigation)
        room = {device: growth.of(device) - known.get(device, 0) for device in growth.devices}
        if any((device, "requested") not in growth.bytes for device in room):
            # The rests of the arrays' own blocks are no room for an array of another test.
            for reading, sign in investigation.moved_storages():
                for device, size in reading.places():
                    if device in room and (device, "requested") not in growth.bytes:
                        room[device] -= sign * (-size % BLOCK)
        unexplained = self._unexplained_host(investigation, growth)
        # A brief look searches for gradients only where the run may have made any.
        if unexplained >= self._policy.retained_bytes and not (
            self._is_brief and not self._tracker.may_have_made_gradients
        ):
            room["cpu"] = unexplained
        return {device: size for device, size in room.items() if size > 0}


def _as_note(found: Finding) -> Finding:
    if found.kind != "host":
        return found
    why = "not looked into by one more re-run, since the test fails already and such re-runs have taken long"
    return dataclasses.replace(found, failed=False, evidence=(*found.evidence, why))


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
