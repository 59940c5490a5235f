"""Check a suspect: settle, run again, explain, judge. Loaded with the first suspect."""

from __future__ import annotations

import contextlib
from time import perf_counter
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.bulk import read_arrays
from pytest_gpuleak.engine.confirm.tracing import traced
from pytest_gpuleak.engine.describe import described
from pytest_gpuleak.engine.garbage_check import read_rings
from pytest_gpuleak.engine.judge.arrays import judge
from pytest_gpuleak.engine.looks import Looks
from pytest_gpuleak.engine.rerun_worth import RerunWorth
from pytest_gpuleak.engine.settle.steps import CHEAP_STEPS, Collection, full_collection, settle_steps_of
from pytest_gpuleak.engine.stages import ACCOUNT, CONFIRM, COUNTERS, EXPLAIN, PROCESSES, READ, RECOGNISE
from pytest_gpuleak.engine.suspect_evidence import SuspectEvidence
from pytest_gpuleak.engine.waiting import Judged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpuleak.adapters.processes.facts import LeftProcess
    from pytest_gpuleak.adapters.protocol import OriginLog, SettleStep
    from pytest_gpuleak.engine.confirm.runner_holds import Keepers
    from pytest_gpuleak.engine.detect.fixture_ownership import OwnedSetup
    from pytest_gpuleak.engine.garbage_check import Garbage
    from pytest_gpuleak.engine.harness_check import HarnessVerdict
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.engine.stages import Guard, Stage
    from pytest_gpuleak.engine.subject import RerunResult, Subject
    from pytest_gpuleak.engine.waiting import WaitingFindings
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.model.readings import Growth

MOST_ADDED_RERUNS = 2
"""Re-runs of what grows, beyond those asked for, that tell what grows and which lines made it."""

BRIEF_RERUN_S = 1.0
"""Seconds that a re-run may take to be tried before all settle steps, some of which wait."""


class SuspectCheck:
    """Check one subject that has left arrays, memory or processes behind.

    `check_fixtures` judges the fixtures that a re-run has torn down; `harness` decides on what the runner alone holds,
    and `keepers_of` tells what in it alone keeps what an earlier run has left; `waiting` takes findings whose
    holders are searched for later, with others; None: each is searched for at once. `garbage` is what a young
    collection has freed of the first run; None: there was none since.
    """

    def __init__(
        self,
        tracker: RunTracker,
        knowledge: SessionKnowledge,
        subject: Subject,
        policy: Policy,
        check_fixtures: Callable[[list[OwnedSetup]], None] = lambda _: None,
        harness: Callable[[Sequence[object], Growth], HarnessVerdict | None] | None = None,
        keepers_of: Keepers | None = None,
        waiting: WaitingFindings | None = None,
        garbage: Garbage | None = None,
    ) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self._safeguards = knowledge.safeguards
        self._subject = subject
        self._policy = policy
        self._check_fixtures = check_fixtures
        self._first = True
        self._collected = False
        self._collects_after_setup = False
        self._harness = harness
        self._keepers_of = keepers_of
        self._waiting = waiting
        self._known: HarnessVerdict | None = None
        self._garbage = garbage
        self.seconds = {"reruns": 0.0, "search": 0.0}
        """What the check has taken so far, beside settling and judging."""
        self._evidence = evidence = SuspectEvidence(tracker, knowledge, subject, policy, garbage)
        self._arrays, self._counters, self._untracked = evidence.arrays, evidence.counters, evidence.untracked
        self._worth = RerunWorth(knowledge, subject, self._arrays)
        self._looks = Looks(self._arrays, knowledge, subject.nodeid, waiting, evidence.judge, evidence.judge_arrays)

    def check(
        self, arrays: list[object], growth: Growth, processes: list[LeftProcess], seen: Callable[[], object] = int
    ) -> tuple[Finding, ...]:
        """Return the findings. A stage that fails is left out; the following stages work with what is known.

        `arrays` are strong references to what the first run left, emptied here before user code; then `seen` is called.
        """
        evidence, investigation = self._evidence, self._arrays
        evidence.watch_processes(processes)
        stays = False
        why = ""
        with self._guard(READ):
            stays = self._take_in(arrays, growth)
        arrays.clear()  # an error may have kept the references
        seen()
        with self._guard(COUNTERS):
            evidence.programs.end_first_run()
        suspected = stays or bool(processes) or evidence.files.wanted
        with contextlib.ExitStack() as afterwards:
            if suspected or evidence.programs.wanted:
                with self._guard(CONFIRM) as stage:
                    why = self._why_not_again() or self._worth.why_not(small_alone=self._is_small_alone())
                    if not why:
                        afterwards.enter_context(self._subject.confirming())
                        why = self._confirm()
                if stage.fault:
                    why = f"the check failed while the test ran again: {stage.fault}"
                    evidence.forget_reruns()
                if stays and not investigation.looks.confirmed:
                    with self._timed("search"):
                        self._looks.at_unconfirmed()
            if stays:
                with self._timed("search"):
                    self._untracked.finish(evidence.programs.first_run_bytes, confirmed=not why)
                    if self._knowledge.notes_are_read or any(found.failed for found in evidence.judge()):
                        evidence.find_lenders()
            with self._guard(ACCOUNT):
                for left in investigation.leftovers():
                    self._knowledge.left_behind.note(self._subject.nodeid, *left)
            with self._guard(PROCESSES):
                evidence.processes.explain(self._guard)
            judged = evidence.judge(why)
            self._worth.note(judged, self.seconds["reruns"] if investigation.looks.confirmed else 0.0)
            if investigation.looks.confirmed:
                self._knowledge.lines.note(of_use=any(one.failed for one in judged))
            found = tuple(self._describe(found, why) for found in judged)
            if self._waiting is not None and investigation.looks.waits:
                known = Judged(self._subject.nodeid, self._policy, why, judged, found, evidence.judge_arrays())
                self._waiting.take(known, investigation, evidence.supplement())
            return found if self._known is None else (*found, *self._known.findings)

    @property
    def held_by_harness(self) -> bool:
        """Whether the test's runner alone held what was left."""
        return self._known is not None

    @contextlib.contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += perf_counter() - began

    def _guard(self, stage: Stage) -> Guard:
        return self._safeguards.guard(stage, self._subject.nodeid)

    def _describe(self, found: Finding, why: str) -> Finding:
        return described(found, why, self._knowledge, self._subject.nodeid)

    def _take_in(self, arrays: list[object], growth: Growth) -> bool:
        tracker, investigation = self._tracker, self._arrays
        collected = self._first and self._garbage is not None
        if not self._first:
            self._evidence.note_borrowed(arrays)
        elif not collected:
            readings = read_arrays(arrays, tracker.guarded_arrays)
            self._evidence.rings = read_rings(arrays, readings, self._knowledge, self._subject.nodeid, self._policy)
        swept = self._evidence.programs.collected
        steps = self._first_steps() if self._first else () if self._looks.brief else self._settle_steps(collected=swept)
        stays = investigation.add_run(
            arrays,
            steps,
            tracker.threads,
            () if collected else CHEAP_STEPS,
            threaded=tracker.threaded,
            decide=(lambda living: self._ask_harness(living, growth)) if self._first else None,
            recognise=lambda: not self._is_brief(),
            collected=swept,
        )
        if self._first:
            if self._collected:
                self._knowledge.garbage.note(freed=not stays)
            if self._known is not None:
                growth = self._known.growth
        elif self._keepers_of is not None:
            with self._guard(RECOGNISE):
                investigation.note_kept_by_runner(self._keepers_of)
        self._first = False
        if self._looks.brief and max(investigation.left.added()[0].values(), default=0) >= self._policy.retained_bytes:
            self._looks.brief = False
            investigation.recognise_late()
            stays = self._settle_late()
        grown = False
        with self._guard(COUNTERS):
            grown = self._counters.add_run(investigation, growth)
            grown |= self._untracked.add_run(self._counters.unexplained_host, growth)
        if stays or grown:
            tracker.ownership.disown(set(investigation.left.by_id))
        return stays or grown

    def _settle_steps(self, *, collected: bool = False) -> Iterator[SettleStep]:
        tracker, own = self._tracker, self._subject.settle_steps
        return settle_steps_of(self._safeguards, tracker.frameworks, own, tracker.threads, collected=collected)

    def _settle_late(self) -> bool:
        return self._arrays.settle(self._settle_steps(collected=self._arrays.looks.collected), self._tracker.threads)

    def _ask_harness(self, living: Sequence[object], growth: Growth) -> frozenset[int]:
        self._evidence.note_borrowed(living)
        if self._harness is not None and not self._tracker.threaded:
            self._known = self._harness(living, growth)
        return frozenset() if self._known is None else self._known.decided

    def _first_steps(self) -> Iterator[SettleStep]:
        """Decide, once something is known to stay, which of the steps are taken."""
        rerun_s, garbage = self._subject.expected_s or 0.0, self._knowledge.garbage
        brief = self._is_brief()
        self._collects_after_setup = brief and garbage.waits_for_setup(rerun_s)
        if self._collects_after_setup:
            return
        if not brief or rerun_s > BRIEF_RERUN_S:
            yield from self._settle_steps()
        elif garbage.comes_first(rerun_s) or self._tracker.detector.mode == "scan":
            # Without epochs no young collection has freed the garbage: a leak would seem to replace what a re-run frees.
            self._collected = True
            yield full_collection(self._safeguards)

    def _is_brief(self) -> bool:
        if self._first:
            self._looks.brief = self._may_be_brief()
        return self._looks.brief

    def _may_be_brief(self) -> bool:
        """Tell whether a re-run may decide before the steps and searches that walk the whole heap (see `Looks`)."""
        knowledge, subject, policy = self._knowledge, self._subject, self._policy
        return (
            (not knowledge.notes_are_read or self._may_wait())
            and policy.cycles != "fail"
            and subject.expected_s is not None
            and not self._tracker.threaded
            and not self._evidence.processes.watched
            and not subject.settle_steps()
            and not self._why_not_again()
        )

    def _may_wait(self) -> bool:
        return self._waiting is not None and self._waiting.may_take(self._policy, self._subject)

    def _why_not_again(self) -> str:
        return "no re-run was asked for" if self._policy.confirm == 0 else self._subject.why_not_again()

    def _confirm(self) -> str:
        """Run again until the subject does not grow, or as often as asked; return why that ended early, if it did."""
        evidence, counters = self._evidence, self._counters
        left, more = self._policy.confirm, MOST_ADDED_RERUNS
        looks, knowledge = self._looks, self._knowledge
        lines_first = knowledge.notes_are_read or knowledge.lines.come_first(self._subject.expected_s or 0.0)
        looks.waives_lines = looks.brief and not lines_first
        while left > 0:
            left -= 1
            evidence.expect_run()
            with counters.recording(), self._untracked.recording():
                # Lines are noted for arrays: where a counter alone has grown, tracing only costs time.
                self._traces_arrays = self._arrays.left_arrays and not looks.waives_lines
                tracing_on = self._traces_arrays or evidence.processes.watched or self._untracked.traces
                result, origins = self._run_again(tracing_on=tracing_on)
                if tracing_on and not (result.passed or result.timed_out):
                    # The test may fail because of the tracing (torch.compile's fullgraph, a mode of its own).
                    self._untracked.begin_again()
                    result, origins = self._run_again(tracing_on=False)
                if not result.passed:
                    self._arrays.forget_doubts()
                    with self._timed("search"):
                        looks.catch_up()
                    return result.why
                self._untracked.note_lines()
                self._add_rerun()
            with self._timed("search"):
                may_wait, doubted = self._may_wait(), self._worth.doubted
                decided = looks.after_rerun(origins, self._settle_late, may_wait=may_wait, may_collect=not doubted)
            if not decided:
                evidence.forget_reruns()
                return doubted
            judged = evidence.judge()
            more_may_come = left > 0 or more > 0
            again = more_may_come and (counters.is_doubtful or self._untracked.begin_record() or counters.wants_rerun)
            if not (again or evidence.grows(judged)):
                break
            if left == 0 and more and (again or looks.comes_again):
                left, more = 1, more - 1
            looks.waives_lines = False
        return ""

    def _add_rerun(self) -> None:
        tracker, evidence = self._tracker, self._evidence
        growth = tracker.counters.end()
        evidence.processes.add_run()
        evidence.programs.add_run()
        with self._guard(EXPLAIN):
            evidence.files.add_run()
        growth = evidence.programs.explained(growth, self._policy.array_bytes, tracker.counters.end)
        self._take_in(tracker.left_arrays(), growth)

    @contextlib.contextmanager
    def _traced(self, logs: list[OriginLog]) -> Iterator[None]:
        frameworks = self._tracker.guarded_arrays if self._traces_arrays else []
        with self._evidence.processes.noting_starts(), traced(frameworks, self._knowledge.is_user_file, logs):
            yield

    def _findings_by_size(self, why: str) -> tuple[Finding, ...]:
        return tuple(self._describe(found, why) for found in judge(self._arrays.evidence(), self._policy))

    def _is_freed_by_setup(self) -> bool:
        """Tell whether the re-run's setup has freed all that a small suspect left: then nothing adds up (clear_session()).

        A collection that waited for the setup is made now.
        """
        with self._guard(CONFIRM):
            if not self._is_small_alone():
                return False
            if self._arrays.left.are_all_gone():
                self._knowledge.garbage.note_freed_by_setup()
                return True
            if self._collects_after_setup:
                self._collects_after_setup = False
                # The re-run's own limit of time bounds it. A further one would take over its timer.
                freed = not self._arrays.settle([Collection(2)], self._tracker.threads)
                self._knowledge.garbage.note(freed=freed)
                return freed
        return False

    def _is_small_alone(self) -> bool:
        """Tell whether arrays that fail by growth alone are all that was left, and no note on them is read."""
        unread = self._looks.brief and not self._knowledge.notes_are_read
        return unread and self._evidence.is_small_alone()

    def _run_again(self, *, tracing_on: bool) -> tuple[RerunResult, OriginLog]:
        logs: list[OriginLog] = []
        tracing = self._traced(logs) if tracing_on else contextlib.nullcontext()
        with self._timed("reruns"), self._tracker.frameworks.in_place():
            # What the re-run replaces may be part of a cycle: in the same epoch, no collection of the whole heap is needed.
            self._tracker.begin_run(same_epoch=self._looks.brief)
            result = self._subject.run_again(tracing, self._findings_by_size, self._is_freed_by_setup)
        origins = {key: origin for log in logs for key, origin in log.items()}
        self._subject.release()
        self._check_fixtures(self._tracker.take_released())
        return result, origins
