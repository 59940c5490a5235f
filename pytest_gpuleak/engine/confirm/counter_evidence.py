"""The counters of one suspect, run by run: settle them, look behind them, and record what the re-runs add."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.bulk import read_arrays
from pytest_gpuleak.engine.judge.counters import ARRAY_OBJECTS, CounterRun, HostLimits, judge_counters, suspects
from pytest_gpuleak.engine.settle.steps import Collection, Waits, YoungCollection, device_rungs, full_collection
from pytest_gpuleak.model.readings import HOST, Growth

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuleak.adapters.probe_protocol import HostGrowth
    from pytest_gpuleak.adapters.protocol import AllocationHistory, ArrayFramework
    from pytest_gpuleak.engine.confirm.array_evidence import Investigation
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.engine.subject import Subject
    from pytest_gpuleak.model.evidence import Evidence
    from pytest_gpuleak.model.findings import Contribution, Finding
    from pytest_gpuleak.model.policy import Policy


SLACK_SHARE = 16
"""Tolerance (a sixteenth): arrays may exceed the growth by this part, because something small was freed meanwhile."""

FIRST_RE_RUN = 2
"""Runs that there are once a test was run again."""


class CounterTrail:
    """What each run of a suspect added to the counters.

    Args:
        tracker: watches the runs.
        knowledge: what is known of the session.
        subject: the test or function.
        policy: what it may leave behind.
    """

    def __init__(self, tracker: RunTracker, knowledge: SessionKnowledge, subject: Subject, policy: Policy) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self._subject = subject
        self._policy = policy
        self._runs: list[CounterRun] = []
        self._suspected: set[str] = set()
        self._recording = False
        self._host_grew_again = False
        self._histories: list[AllocationHistory] = []
        self._limits = {probe.name: HostLimits(probe.judges, probe.floor) for probe in tracker.counters.host_probes}

    def add_run(self, investigation: Investigation, growth: Growth) -> bool:
        """Settle the counters after a run, and note what they say; whether they tell of memory that no array explains.

        Args:
            investigation: has taken in the arrays that the run left; is given those that Python had not seen.
            growth: the counters right after the run.
        """
        growth = self._settled(investigation, growth)
        grown = self._unexplained(investigation, growth)
        self._reveal(investigation, growth)
        if grown:
            grown = self._unexplained(investigation, growth)
        self._suspected |= grown
        self._host_grew_again = HOST in grown and bool(self._runs)
        host = self._end_record()
        self._runs.append(CounterRun(growth, host))
        return bool(grown) or investigation.left_arrays

    def forget_reruns(self) -> None:
        """Go back to what the first run added: a re-run could not be taken in to its end."""
        del self._runs[1:]

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """While it is entered, the test is run again, and what that adds to the counters is recorded if they grew."""
        counters = self._tracker.counters
        self._histories = self._tracker.frameworks.allocation_histories() if self._suspected - {HOST} else []
        if self._host_grew_again:
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

    def _take_blocks(self) -> None:
        """Note what the allocators' histories of the last run say of the blocks that are still there."""
        histories, self._histories = self._histories, []
        if len(self._runs) < FIRST_RE_RUN:
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
        """Whether the host's memory was seen to grow again and no run has told yet by what: worth one more run.

        Recording takes walks over the whole heap, seconds in all, and most tests that grow once have imported something.
        """
        return self._host_grew_again and not any(run.host for run in self._runs)

    def judge(self, evidence: Evidence) -> tuple[Finding, ...]:
        """The findings on what no array explains."""
        return judge_counters(self._runs, evidence, self._policy, self._limits) if self._runs else ()

    def _unexplained(self, investigation: Investigation, growth: Growth) -> set[str]:
        return suspects(growth, self._known(investigation), self._policy, self._limits)

    def _known(self, investigation: Investigation) -> dict[str, int]:
        """What the arrays explain that the last run left, by device, and of the host's counters."""
        sizes, arrays = investigation.added()
        return {**sizes, HOST: sizes.get("cpu", 0) + ARRAY_OBJECTS * arrays}

    def _settled(self, investigation: Investigation, growth: Growth) -> Growth:
        """The growth once what was on its way out has gone; never more than at first: what grew since is ours."""
        tracker, counters, safeguards = self._tracker, self._tracker.counters, self._knowledge.safeguards
        # What would be revealed is looked for on the whole heap: not for what a young collection frees.
        if not (self._unexplained(investigation, growth) or self._room(investigation, growth)):
            return growth
        # The devices first: clearing a workspace takes microseconds, a collection of the whole heap a tenth of a second.
        for rung in (*device_rungs(safeguards, tracker.frameworks), Collection(1), YoungCollection()):
            for _ in rung.steps():
                growth = _lower(growth, counters.end())
            if not (self._unexplained(investigation, growth) or self._room(investigation, growth)):
                return growth
        for rung in (full_collection(safeguards), *self._subject.settle_steps(), Waits(tracker.threads)):
            if not self._unexplained(investigation, growth):
                return growth
            for _ in rung.steps():
                growth = _lower(growth, counters.end())
                if not self._unexplained(investigation, growth):
                    return growth
        return growth

    def _reveal(self, investigation: Investigation, growth: Growth) -> None:
        """Give arrays that C++ alone knows to the investigation, where the counters have room for them."""
        room = self._room(investigation, growth)
        if not room:
            return
        # Once for all devices: what has been read has a Python object since, and would be known to a second look.
        frameworks = self._tracker.frameworks
        for device, arrays in frameworks.unread_arrays(set(room)).items():
            investigation.add_hidden(share_of(arrays, room[device], frameworks.arrays))

    def _room(self, investigation: Investigation, growth: Growth) -> dict[str, int]:
        """By device, bytes that no array explains and that arrays may hold which C++ alone knows."""
        known = self._known(investigation)
        room = {device: growth.of(device) - known.get(device, 0) for device in growth.devices}
        # Any of the host's counters has a CPU tensor in it; the one that grew least has least noise.
        host = [size for (device, _), size in growth.bytes.items() if device == HOST]
        unexplained = min(host, default=0) - known.get(HOST, 0) - growth.imported
        if unexplained >= self._policy.retained_bytes:
            room["cpu"] = unexplained
        return {device: size for device, size in room.items() if size > 0}


def share_of(arrays: list[object], size: int, frameworks: Sequence[ArrayFramework]) -> list[object]:
    """Choose, largest first, the arrays that together explain `size` bytes.

    When an unread array was made cannot be told. One from an earlier test does not fit into what this test has added;
    and where they make up less than half of it, it is something else that was added.
    """
    readings = read_arrays(arrays, frameworks)
    sized = sorted(
        (array for array in arrays if id(array) in readings), key=lambda array: -readings[id(array)].storage_bytes
    )
    chosen, taken = [], 0
    for array in sized:
        storage_bytes = readings[id(array)].storage_bytes
        if taken + storage_bytes <= size + size // SLACK_SHARE:
            taken += storage_bytes
            chosen.append(array)
    return chosen if taken >= size / 2 else []


def _lower(first: Growth, now: Growth) -> Growth:
    """Of each counter the lower growth."""
    return first._replace(bytes={key: min(size, now.bytes.get(key, size)) for key, size in first.bytes.items()})
