"""Keep all that the runs of one suspect have shown, of arrays, counters, files, processes and programs, and judge it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.engine.confirm.array_evidence import ArrayEvidence
from pytest_gpuleak.engine.confirm.counter_evidence import CounterEvidence
from pytest_gpuleak.engine.confirm.lenders import Lenders
from pytest_gpuleak.engine.confirm.open_files import OpenFiles
from pytest_gpuleak.engine.confirm.process_evidence import ProcessEvidence
from pytest_gpuleak.engine.confirm.program_evidence import ProgramEvidence
from pytest_gpuleak.engine.describe import Supplement
from pytest_gpuleak.engine.host_arrays import HostArrays
from pytest_gpuleak.engine.judge.arrays import judge
from pytest_gpuleak.engine.stages import COUNTERS, PROCESSES, READ, VERDICT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuleak.adapters.processes.facts import LeftProcess
    from pytest_gpuleak.engine.garbage_check import Garbage
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.engine.stages import Guard, Stage
    from pytest_gpuleak.engine.subject import Subject
    from pytest_gpuleak.model.evidence import Evidence
    from pytest_gpuleak.model.findings import Finding, Holder
    from pytest_gpuleak.model.policy import Policy


class SuspectEvidence:
    """What the runs of one subject have left and added, kind by kind.

    `garbage` is what a young collection has freed of the first run; None: there was none since.
    """

    def __init__(
        self,
        tracker: RunTracker,
        knowledge: SessionKnowledge,
        subject: Subject,
        policy: Policy,
        garbage: Garbage | None,
    ) -> None:
        safeguards, nodeid = knowledge.safeguards, subject.nodeid
        self._tracker = tracker
        self._knowledge = knowledge
        self._safeguards = safeguards
        self._subject = subject
        self._policy = policy
        self._judged: tuple[Evidence, tuple[Finding, ...]] | None = None
        self.rings: Mapping[int, Holder] = {} if garbage is None else garbage.rings
        """Rings of garbage, by the id of their array."""
        self.arrays = ArrayEvidence(
            tracker.detector,
            tracker.guarded_arrays,
            tracker.frameworks,
            lambda: knowledge.culprits,
            lambda stage: safeguards.guard(stage, nodeid),  # what waits must not refer to the test
            knowledge.is_user_file,
            () if garbage is None else garbage.freed,
        )
        self.counters = CounterEvidence(tracker, knowledge, subject, policy)
        self.programs = ProgramEvidence(tracker, knowledge)
        self.untracked = HostArrays(tracker, knowledge, subject, policy, self._guard)
        self.counters.watched_growth = self.untracked.watched
        self.lenders = Lenders(tracker, knowledge, self._guard)
        self.files = OpenFiles(tracker, policy)
        self.processes = ProcessEvidence(tracker, policy, [], knowledge.is_user_file)

    def watch_processes(self, processes: list[LeftProcess]) -> None:
        """Take the processes that the first run has left."""
        self.processes = ProcessEvidence(self._tracker, self._policy, processes, self._knowledge.is_user_file)

    def expect_run(self) -> None:
        """Prepare for a re-run."""
        for evidence in (self.arrays, self.processes, self.programs, self.files):
            evidence.expect_run()

    def forget_reruns(self) -> None:
        """Forget what re-runs have shown: the first run alone is judged."""
        for evidence in (self.arrays, self.processes, self.programs, self.files, self.counters, self.untracked):
            evidence.forget_reruns()

    def is_small_alone(self) -> bool:
        """Tell whether arrays that the counters account for are all that was left."""
        others = self.processes.watched or self.programs.wanted or self.files.wanted or self.untracked.suspected
        return not others and self.counters.explained and self.arrays.left_arrays

    def grows(self, judged: tuple[Finding, ...]) -> bool:
        """Tell whether a re-run has shown growth of any kind; `judged` are the findings after it."""
        grows = self.processes.grows or self.files.grows or any(found.bytes_per_run for found in judged)
        return grows or self.programs.grows  # asked last: it may collect the heap

    def note_borrowed(self, arrays: Sequence[object]) -> None:
        """Note the memory that arrays borrow from objects that are no arrays."""
        if self.untracked.watched is not None:
            self.lenders.note_borrowed(arrays)

    def find_lenders(self) -> None:
        """Search for the objects whose memory the arrays borrow, and judge anew what they hold."""
        self.lenders.find(self.arrays.evidence())
        self._judged = None

    def supplement(self) -> Supplement:
        """Return what is known beside the evidence on arrays."""
        return Supplement(self.rings, self.lenders.holders, self._subject.counts_running_frames)

    def judge(self, why: str = "") -> tuple[Finding, ...]:
        """Judge all kinds of evidence; `why` tells why there was no re-run, if there was none."""
        found: tuple[Finding, ...] | None = None
        with self._guard(VERDICT):
            found = self.judge_arrays()
        if found is None:
            # Without a comparison of the runs, the first run alone is judged.
            self.arrays.forget_reruns()
            with self._guard(READ):
                found = self.judge_arrays()
        with self._guard(COUNTERS):
            of_arrays = self.untracked.judge()
            counted = self.counters.judge(self._supplemented(), self.untracked.bytes_per_run)
            if any(one.kind == "host" for one in counted):
                of_arrays = tuple(one for one in of_arrays if one.kind != "host")
            found = (*(found or ()), *of_arrays, *self.files.judge(), *counted)
        with self._guard(PROCESSES):
            found = (*self.processes.judge(why), *(found or ()))
        # What keeps more arrays or tracers with each run keeps their programs too.
        if not any(one.bytes_per_run or one.kind == "tracer" for one in found or ()):
            found = (*(found or ()), *self.programs.judge())
        return found or ()

    def judge_arrays(self) -> tuple[Finding, ...]:
        """Judge the arrays, and reuse the result while the evidence is the same (docs/developing/performance.md)."""
        evidence = self.arrays.evidence()
        if self._judged is None or self._judged[0] is not evidence:
            self._judged = evidence, judge(self._supplemented(), self._policy)
        return self._judged[1]

    def _supplemented(self) -> Evidence:
        return self.supplement().added_to(self.arrays.evidence())

    def _guard(self, stage: Stage) -> Guard:
        return self._safeguards.guard(stage, self._subject.nodeid)
