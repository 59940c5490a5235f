"""Keep all that the runs of one suspect have shown, of arrays, counters, files, processes and programs, and judge it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING

from pytest_gpuleak.engine.confirm.added import OpenFiles, ProcessEvidence, ProgramEvidence
from pytest_gpuleak.engine.confirm.counter_evidence import CounterEvidence
from pytest_gpuleak.engine.describe import supplemented
from pytest_gpuleak.engine.holders import Holders
from pytest_gpuleak.engine.host_arrays import HostArrays, Lenders
from pytest_gpuleak.engine.judge.arrays import judge
from pytest_gpuleak.engine.runs import Runs
from pytest_gpuleak.engine.stages import COUNTERS, EXPLAIN, PROCESSES, READ, VERDICT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_gpuleak.adapters.processes.facts import LeftProcess
    from pytest_gpuleak.engine.garbage_check import Garbage
    from pytest_gpuleak.engine.subject import Suspect
    from pytest_gpuleak.model.evidence import Evidence
    from pytest_gpuleak.model.findings import Finding, Holder
    from pytest_gpuleak.model.readings import Growth


@dataclasses.dataclass
class FirstRun:
    """What the first run of a subject has left: strong references to arrays, emptied by the check before user code runs.

    `garbage` is what a young collection has freed since; None: there was none. `seen` is called once the arrays are known.
    """

    arrays: list[object]
    growth: Growth
    processes: list[LeftProcess] = dataclasses.field(default_factory=list)
    garbage: Garbage | None = None
    seen: Callable[[], object] | None = None


class SuspectEvidence:
    """What the runs of one subject have left and added, kind by kind."""

    def __init__(self, suspect: Suspect, first: FirstRun) -> None:
        tracker, knowledge = suspect.tracker, suspect.knowledge
        # What waits must not refer to the test.
        guard = functools.partial(knowledge.safeguards.guard, nodeid=suspect.subject.nodeid)
        self._suspect = suspect
        self.rings: Mapping[int, Holder] = {} if first.garbage is None else first.garbage.rings
        """Rings of garbage, by the id of their array."""
        freed = () if first.garbage is None else first.garbage.freed
        self.runs = Runs(tracker, guard, freed)
        self.holders = Holders(tracker, knowledge, self.runs, guard)
        self.counters = CounterEvidence(suspect, self.runs)
        self.programs = ProgramEvidence(suspect)
        self.untracked = HostArrays(suspect)
        self.counters.watched_growth = self.untracked.watched
        self.lenders = Lenders(suspect)
        self.files = OpenFiles(suspect)
        self.processes = ProcessEvidence(suspect, first.processes)
        self._others = (self.processes, self.programs, self.files)
        self._frames_count = suspect.subject.counts_running_frames
        self._let_go: dict[str, int] | None = None
        self._closed: Evidence | None = None

    def begin_anew(self) -> None:
        """Take what follows for the first run, beside arrays: a re-run that has set up wider fixtures which stay."""
        for evidence in (self.counters, self.untracked, self.processes):
            evidence.begin_anew()

    def expect_run(self) -> None:
        """Prepare for a re-run."""
        for evidence in (*self._others, self.counters):
            evidence.expect_run()

    def take_run(self, *, traced: bool) -> Growth:
        """Take what a re-run has left beside arrays; return what it has added to the counters."""
        self.untracked.note_lines()
        growth = self._suspect.tracker.counters.end()
        self.processes.add_run(traced=traced)
        with self.runs.marking():  # its collection frees garbage of the runs
            collected = self.programs.add_run()
        if collected:
            growth = growth.lowest(self._suspect.tracker.counters.end())
        with self._suspect.guard(EXPLAIN):
            self.files.add_run()
        return growth._replace(compiled=self.programs.last_run_bytes)

    def forget_reruns(self) -> None:
        """Forget what re-runs have shown: the first run alone is judged."""
        for evidence in (self.runs, *self._others, self.counters, self.untracked):
            evidence.forget_reruns()

    def count(self, growth: Growth) -> bool:
        """Take what a run has added to the counters; return whether anything but arrays that stay is suspected."""
        self.counters.add_run(growth)
        grown = self.untracked.add_run(self.counters.unexplained_host, growth, self.counters.replaced_host)
        return grown or not self.counters.explained

    def suspects_beside(self) -> bool:
        """Tell whether anything but arrays, which the counters account for, is suspected."""
        return any(one.wanted for one in self._others) or self.untracked.suspected or not self.counters.explained

    def grows_beside(self) -> bool:
        """Tell whether each re-run may have shown growth of anything but arrays that the collector tracks."""
        grows = any(one.grows for one in self._others) or self.untracked.suspected or self.counters.wants_rerun
        return grows or any(one.bytes_per_run for one in self._judge_counters(self.of_arrays()))

    def begin_record(self) -> bool:
        """Tell whether one more run is to be recorded for what it adds to the host's memory."""
        return self.untracked.begin_record() or self.counters.wants_rerun

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record what a re-run within this context adds to the host's memory."""
        with self.counters.recording(), self.untracked.recording():
            yield

    def finish(self, *, confirmed: bool) -> None:
        """Look for what the first run alone has left to the host, once all runs have ended."""
        if self.runs.count:
            self.untracked.finish(self.programs.first_run_bytes, confirmed=confirmed)

    def note_borrowed(self, arrays: Sequence[object]) -> None:
        """Note the memory that arrays borrow from objects that are no arrays."""
        if self.untracked.watched is not None:
            self.lenders.note_borrowed(arrays)

    def close(self) -> None:
        """Take no more than names from now on: what dies later, other tests let go."""
        self._closed = self.of_arrays()

    def of_arrays(self) -> Evidence:
        """Return the evidence on arrays."""
        graphs = dict(self.holders.graphs)
        if self._closed is not None:
            evidence = dataclasses.replace(self._closed, survivors=self.runs.survivors.all(), graphs=graphs)
        else:
            if self._let_go is None or self.runs.settled:
                self._let_go = self._suspect.knowledge.older(self._suspect.tracker).let_go(self.runs.of_reruns())
            up = self._suspect.tracker.ownership.active_roots
            evidence = self.runs.evidence(graphs=graphs, let_go=self._let_go, up=up)
        frames_count = self._frames_count or self._closed is not None
        return supplemented(evidence, self.rings, self.lenders.holders, frames_count=frames_count)

    def judge(self, why: str = "") -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
        """Judge all kinds of evidence; `why` tells why there was no re-run, if there was none.

        Returns the findings on arrays, and the others.
        """
        found: tuple[Finding, ...] | None = None
        with self._suspect.guard(VERDICT):
            found = judge(self.of_arrays(), self._suspect.policy)
        if found is None:
            # Without a comparison of the runs, the first run alone is judged.
            self.runs.forget_reruns()
            with self._suspect.guard(READ):
                found = judge(self.of_arrays(), self._suspect.policy)
        found = found or ()
        if not self.counters.explained and not self.holders.graphs:
            self.holders.count_graphs()  # the counters see what graphs retain
        beside: tuple[Finding, ...] = ()
        with self._suspect.guard(COUNTERS):
            beside = self._judge_counters(self.of_arrays())
        with self._suspect.guard(PROCESSES):
            beside = (*self.processes.judge(why), *beside)
        # What keeps more arrays or tracers with each run keeps their programs too.
        if not any(one.bytes_per_run or one.kind == "tracer" for one in (*found, *beside)):
            beside = (*beside, *self.programs.judge())
        return found, beside

    def _judge_counters(self, evidence: Evidence) -> tuple[Finding, ...]:
        of_arrays = self.untracked.judge()
        counted = self.counters.judge(evidence, self.untracked.bytes_per_run)
        if any(one.kind == "host" for one in counted):
            of_arrays = tuple(one for one in of_arrays if one.kind != "host")
        return (*of_arrays, *self.files.judge(), *counted)
