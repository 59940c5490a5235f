"""Check a suspect in the twelve steps of docs/how-it-works.md. Loaded with the first suspect."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.bulk import read_arrays
from pytest_gpuleak.engine.describe import described
from pytest_gpuleak.engine.garbage_check import read_rings
from pytest_gpuleak.engine.judge.replacements import compare
from pytest_gpuleak.engine.late import Waiting
from pytest_gpuleak.engine.limits import MOST_ADDED_RERUNS
from pytest_gpuleak.engine.runner import find_kept_by_runner
from pytest_gpuleak.engine.settle.steps import CHEAP_STEPS, settle_steps_of
from pytest_gpuleak.engine.stages import ACCOUNT, CONFIRM, COUNTERS, PROCESSES, READ, RECOGNISE
from pytest_gpuleak.engine.suspect_evidence import SuspectEvidence
from pytest_gpuleak.heap.collector import collect_whole
from pytest_gpuleak.model.findings import Judged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuleak.adapters.protocol import OriginLog
    from pytest_gpuleak.engine.judge.replacements import Comparison
    from pytest_gpuleak.engine.subject import Suspect
    from pytest_gpuleak.engine.suspect_evidence import FirstRun
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.readings import Growth

_NOT_TRACED: Final = "lines are recorded only for what fails"
"""Why what a test may leave has no line."""


class SuspectCheck:
    """Check one subject that has left arrays, memory or processes behind; of pytest's `item` references are counted."""

    def __init__(self, suspect: Suspect, item: object | None = None) -> None:
        self._suspect = suspect
        self._item = item
        self._step = ""
        self._why = ""
        self._why_no_lines = ""
        self._has_lines = False

    def check(self, first: FirstRun) -> tuple[Finding, ...]:
        """Return the findings. A stage that fails is left out; the following stages work with what is known."""
        self._evidence = evidence = SuspectEvidence(self._suspect, first)
        self._runs, self._holders = evidence.runs, evidence.holders
        suspected = False
        with self._suspect.guard(READ):  # 1, 3
            suspected = self._end_first_run(first)
        first.arrays.clear()  # an error may have kept the references
        if first.seen is not None:
            first.seen()
        with self._suspect.guard(COUNTERS):
            evidence.programs.end_first_run()
        if self._suspect.subject.stays or (self._suspect.subject.rebuilds and evidence.suspects_beside()):
            self._begin_to_stay()
        with contextlib.ExitStack() as until_judged:
            until_judged.enter_context(evidence.untracked.following())
            if suspected or self._runs.rebuilds or evidence.suspects_beside():  # 2
                step = "4 not run again"
                with self._suspect.guard(CONFIRM) as stage:
                    asked = self._suspect.policy.confirm > 0
                    self._why = self._suspect.subject.why_not_again() if asked else "no re-run was asked for"  # 4
                    if not self._why:
                        step = "5 run again in vain"
                        until_judged.enter_context(self._suspect.subject.confirming())
                        self._why = self._confirm()  # 5 to 10
                if stage.fault:
                    self._why = f"the check failed while the test ran again: {stage.fault}"
                    evidence.forget_reruns()
                if self._why:
                    self._step = step
                    self._settle()
            findings = self._conclude()  # 11, 12
        if self._runs.rebuilds and self._runs.living():
            with self._suspect.guard(CONFIRM):
                collect_whole()  # a later test would be credited with garbage of the fixtures that re-runs have set up
        return findings

    def _confirm(self) -> str:
        """Run again until the subject does not grow, or as often as asked; return why that ended early, if it did."""
        runs, evidence = self._runs, self._evidence
        if runs.rebuilds or not self._is_proven_young():
            self._settle()
            self._note_kept()
            if not (runs.rebuilds or runs.suspects() or evidence.suspects_beside()):
                self._step = "2 settled"
                return ""
        wanted, added = self._suspect.policy.confirm, 0
        while wanted:
            why = self._run_again()  # 5
            if why or self._is_decided():
                return why
            if self._is_first_in_fixtures:
                continue
            wanted -= 1
            comparison = self._compare_settled()  # 6 to 9
            if comparison.doubtful and added < MOST_ADDED_RERUNS:
                wanted, added = wanted + 1, added + 1  # 10: in the settled state nothing that stays is garbage
                if not runs.settled:
                    self._settle()
            elif not (comparison.grows or evidence.grows_beside()):
                return ""
            elif added and comparison.grows:
                self._step = "10 sure from a settled state"
        self._run_for_lines(recorded=evidence.begin_record())
        return ""

    def _begin_to_stay(self) -> None:
        """Have the wider fixtures that re-runs set up stay: the first run may have left something in those that it has ended."""
        self._runs.rebuilds = self._suspect.subject.stays = True

    @property
    def _is_first_in_fixtures(self) -> bool:
        """Whether the last re-run has set up wider fixtures that stay: it is compared with nothing, and the next one with it."""
        return self._runs.rebuilds and self._runs.count == 2

    def _is_decided(self) -> bool:
        """Tell whether the last re-run decides without a comparison."""
        if self._is_first_in_fixtures:
            self._note_kept()
            if not (self._runs.living(of_last=True) or self._evidence.suspects_beside()):
                self._step = "7 nothing new"
                return True
        return self._runs.freed_by_setup

    def _is_proven_young(self) -> bool:
        """Tell whether the young collection has shown that nothing left is garbage of the run's own.

        Without an epoch it cannot, and what threads, hooks or a policy for cycles decide on takes all settle steps. Nor can it
        where wider fixtures were torn down: their values, which garbage may refer to, are older than what it looks at.
        """
        return (
            self._suspect.tracker.detector.sees_only_young
            and not self._suspect.tracker.threaded
            and self._suspect.policy.cycles != "fail"
            and not self._suspect.subject.settle_steps()
        )

    def _compare_settled(self) -> Comparison:
        """Compare the last re-run, and settle only where it has added something, or may have."""
        comparison = self._compare()  # 6
        if any(comparison.added[-1:]) or comparison.doubtful:
            self._settle()  # 8
            self._step = "9 settled"
            return self._compare()
        replaced = bool(self._runs.living(of_last=True))
        self._step = "7 everything new replaces something" if replaced else "7 nothing new"
        return comparison

    def _compare(self) -> Comparison:
        comparison = compare(self._evidence.of_arrays())
        if (comparison.added and comparison.added[-1]) or comparison.doubtful:
            self._runs.forget_shared_dead()
            self._note_kept()
            comparison = compare(self._evidence.of_arrays())
        return comparison

    def _note_kept(self) -> None:
        if self._item is not None:
            with self._suspect.guard(RECOGNISE):
                self._suspect.tracker.detector.show_young()
                self._runs.note_kept(find_kept_by_runner(self._runs, self._suspect.tracker, self._item))

    def _name_living(self, *, of_last: bool = False) -> None:
        """Name what was left, or what the last run left, while it can be told from older objects, as far as a walk can."""
        self._holders.name(self._runs.suspects(of_last=of_last), self._suspect.subject.fixtures())

    def _settle(self) -> None:
        safeguards, tracker, users = (
            self._suspect.knowledge.safeguards,
            self._suspect.tracker,
            self._suspect.subject.settle_steps(),
        )
        self._runs.settle(settle_steps_of(safeguards, tracker.frameworks, users, tracker.threads, self._may_be_garbage))
        self._runs.forget_shared_dead()

    def _may_be_garbage(self, waited: bool) -> bool:
        """Tell whether a collection may free what is followed: not where lasting roots lead to all of it."""
        runs = self._runs
        if runs.collected and not waited:
            return False
        if self._evidence.suspects_beside():
            return True
        older = runs.others(self._suspect.knowledge.older(self._suspect.tracker).all())
        return not self._holders.are_held(runs.suspects(), self._suspect.subject.fixtures(), older)

    def _run_for_lines(self, *, recorded: bool = False) -> None:
        """Run once more, traced for the lines that make what fails; `recorded`, for what it adds to the host's memory."""
        fails = self._evidence.processes.grows or any(one.failed for one in self._evidence.judge()[0])
        fails = fails and self._suspect.policy.allowed is None
        self._why_no_lines = "" if fails or recorded else _NOT_TRACED  # what is recorded may fail once that is read
        if not recorded and not fails:
            return
        self._has_lines = True
        with self._evidence.recording():
            logs: list[OriginLog] = []
            failed = self._run_again(logs if fails else None, traced=True)
            if failed and recorded:
                # The test may fail because of the tracing (torch.compile's fullgraph, a mode of its own).
                self._evidence.untracked.begin_again()
                failed = self._run_again(traced=True)
            if not failed:
                lines = {key: line for log in logs for key, line in log.items()}
                self._runs.survivors.take_lines(self._runs.count - 1, lines)
            elif fails:
                self._why_no_lines = f"the run that records lines did not pass: {failed}"

    def _run_again(self, logs: list[OriginLog] | None = None, *, traced: bool = False) -> str:
        """Run the subject again, and take what it leaves; return what happened instead of passing."""
        runs, tracker, evidence = self._runs, self._suspect.tracker, self._evidence
        evidence.expect_run()
        runs.begin_run(self._suspect.knowledge.older(tracker).all(), traced=traced)
        with runs.marking(), tracker.frameworks.in_place(), evidence.untracked.heap.run():
            tracker.begin_run(same_epoch=True)
            tracing = contextlib.nullcontext() if logs is None else self._traced(logs)
            result = self._suspect.subject.run_again(tracing, self._findings_by_size, self._decided_by_setup)
        if runs.rebuilds and runs.count == 1:
            evidence.begin_anew()
        self._suspect.subject.release()
        if not result.passed:
            runs.fail_run()
            return result.why
        if self._runs.freed_by_setup:
            return ""
        growth = evidence.take_run(traced=traced)
        arrays = tracker.left_arrays()
        tracker.detector.show_young()  # a wider fixture that was set up again has hidden what the runs before have left
        with self._suspect.guard(READ):
            evidence.note_borrowed(arrays)
            runs.end_run(arrays, self._suspect.knowledge.is_user_file)
        arrays.clear()
        self._count(growth)
        return ""

    def _decided_by_setup(self) -> bool:
        """Tell whether the re-run's setup has let all arrays go, and they are all that was left: nothing adds up then.

        That of wider fixtures, which were torn down after the first run, does not tell that: another run in them does.
        """
        with self._suspect.guard(CONFIRM):
            self._runs.poll("count")
            if self._runs.count == 1 and self._suspect.subject.rebuilds and self._runs.lets_go:
                self._begin_to_stay()
            self._runs.freed_by_setup = (
                self._runs.count == 1
                and not self._runs.rebuilds
                and self._runs.all_gone
                and not self._evidence.suspects_beside()
                and not any(one.failed for one in self._evidence.judge()[0])  # its holder is to be named
            )
            if self._runs.freed_by_setup:
                self._step = "5 the setup of the re-run lets all go"
        return self._runs.freed_by_setup

    @contextlib.contextmanager
    def _traced(self, logs: list[OriginLog]) -> Iterator[None]:
        """Let every imported framework note the lines that create storages; one log per framework goes to `logs`."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._evidence.processes.noting_starts())
            for framework in self._suspect.tracker.guarded_arrays:
                if framework.array_type() is not None:
                    logs.append(stack.enter_context(framework.trace_origins(self._suspect.knowledge.is_user_file)))
            yield

    def _end_first_run(self, first: FirstRun) -> bool:
        evidence, runs, tracker = self._evidence, self._runs, self._suspect.tracker
        arrays, garbage = first.arrays, first.garbage
        shown = tracker.detector.show_young()
        if garbage is None:
            readings = read_arrays(arrays, tracker.guarded_arrays)
            evidence.rings = read_rings(
                arrays, readings, self._suspect.knowledge, self._suspect.subject.nodeid, self._suspect.policy
            )
        evidence.note_borrowed(arrays)
        steps = CHEAP_STEPS if garbage is None or shown else ()
        runs.end_run(arrays, self._suspect.knowledge.is_user_file, steps)
        if tracker.detector.sees_only_young and not tracker.threaded:
            self._note_kept()
        suspected = self._count(first.growth)
        if runs.living() and not suspected:
            self._step = "3 the runner holds it"
            # What is as large as fails is run again, by law.
            suspected = any(found.failed and found.kind != "cycle" for found in evidence.judge()[0])
        return suspected

    def _count(self, growth: Growth) -> bool:
        """Take what a run has added to the counters; return whether anything is suspected."""
        suspected = False
        with self._suspect.guard(COUNTERS):
            suspected = self._evidence.count(growth)
        suspected |= bool(self._runs.suspects())  # now with the arrays that the counters have told of
        if suspected:
            self._suspect.tracker.ownership.disown({left.held.reading.identity for left in self._runs.living()})
        return suspected

    def _findings_by_size(self, why: str) -> tuple[Finding, ...]:
        of_arrays, _ = self._evidence.judge(why)
        how = dataclasses.replace(self._how(), why_not_again=why)
        return tuple(
            described(found, how, self._suspect.knowledge, self._suspect.subject.nodeid) for found in of_arrays
        )

    def _conclude(self) -> tuple[Finding, ...]:
        """Judge, and describe the findings."""
        evidence, why = self._evidence, self._why
        of_arrays = self._named()
        evidence.finish(confirmed=not why)
        if any(found.failed for found in of_arrays):
            evidence.lenders.find(evidence.of_arrays())
        with self._suspect.guard(ACCOUNT):
            comparison = compare(self._runs.evidence())
            self._holders.note_leftovers(self._suspect.subject.nodeid, comparison.extra, comparison.uncollected)
        with self._suspect.guard(PROCESSES):
            evidence.processes.explain()
        of_arrays, beside = evidence.judge(why)
        how, nodeid = self._how(), self._suspect.subject.nodeid
        told = [
            dataclasses.replace(described(found, how, self._suspect.knowledge, nodeid), provisional=waits)
            for found, waits in (*((one, self._holders.waits) for one in of_arrays), *((one, False) for one in beside))
        ]
        if self._holders.waits and self._suspect.knowledge.late is not None:
            evidence.close()
            waiting = Waiting(
                nodeid, self._suspect.policy, how, tuple(told), len(of_arrays), self._holders, evidence.of_arrays
            )
            self._suspect.knowledge.late.take(waiting)
        return tuple(told)

    def _named(self) -> tuple[Finding, ...]:
        """Return the findings on arrays. Their holders are named at once where the verdict depends on them, else later."""
        evidence, why = self._evidence, self._why
        of_arrays, _ = evidence.judge(why)
        told = any(found.failed for found in of_arrays) or self._suspect.knowledge.notes_are_read
        if told or any(found.bytes >= self._suspect.policy.retained_bytes for found in of_arrays):
            self._name_living()
        if self._holder_decides(of_arrays) and not self._runs.settled:
            self._settle()
            of_arrays, _ = evidence.judge(why)
        if self._holder_decides(of_arrays):
            with self._suspect.knowledge.safeguards.searching(self._suspect.subject.nodeid):
                self._holders.search()
            of_arrays, _ = evidence.judge(why)
            if any(found.failed for found in of_arrays) and not (why or self._has_lines or self._runs.freed_by_setup):
                self._run_for_lines()
                self._name_living(of_last=True)
                if not self._holders.note_reached():
                    self._holders.search()  # it has replaced what was named
        elif of_arrays and self._runs.living():
            self._holders.wait(named=told)
        return of_arrays

    def _holder_decides(self, of_arrays: Sequence[Finding]) -> bool:
        """Tell whether the verdict depends on who holds it: on what does not grow and is large enough to fail."""
        if not self._runs.living() or self._holders.searched:
            return False
        if self._suspect.knowledge.late is None:
            return bool(of_arrays)
        decides = any(found.failed and found.kind != "growing" for found in of_arrays)
        return decides and not any(found.failed and found.kind == "growing" for found in of_arrays)

    def _how(self) -> Judged:
        names = {"count": "reference count", "collection": "a collection", "settled": "the settling"}
        freed = tuple(text for cause, text in names.items() if cause in self._runs.causes)
        no_lines = "" if self._why else self._why_no_lines
        return Judged(
            self._runs.deciding,
            self._step,
            freed,
            self._why,
            why_no_line=no_lines,
            search_cut=self._holders.search_cut,
        )
