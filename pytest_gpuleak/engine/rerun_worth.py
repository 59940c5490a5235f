"""Decide whether a re-run of one suspect is worth its time, and note for the next ones what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuleak.engine.settle.steps import full_collection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.engine.confirm.array_evidence import ArrayEvidence
    from pytest_gpuleak.engine.confirm.counter_evidence import CounterEvidence
    from pytest_gpuleak.engine.confirm.untracked_evidence import UntrackedEvidence
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.engine.subject import Subject
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.policy import Policy


QUICK_RERUN_S: Final = 0.005
"""Seconds of a re-run that is made all the same: a leak that hangs on a known root is then told from what was replaced."""


class RerunWorth:
    """Ask the records of the session whether what a suspect has left is worth a re-run."""

    def __init__(
        self,
        knowledge: SessionKnowledge,
        subject: Subject,
        policy: Policy,
        arrays: ArrayEvidence,
        counters: CounterEvidence,
        untracked: UntrackedEvidence,
    ) -> None:
        self._knowledge = knowledge
        self._subject = subject
        self._policy = policy
        self._arrays = arrays
        self._counters = counters
        self._untracked = untracked
        self._host_alone = False
        self._host_grown = 0
        self._small_alone = False
        self.doubted = ""
        """Why what a re-run shows is not worth a collection of the whole heap; empty if it is."""

    def why_not(self, *, small_alone: bool, processes: bool) -> str:
        """Tell why the suspect is not run again; empty if it is.

        Args:
            small_alone: whether arrays that fail by growth alone are all that it left, and no note on them is read.
            processes: whether it left processes.
        """
        self._small_alone = small_alone
        self._host_alone = self._counters.host_alone and not (self._arrays.left_arrays or processes)
        if self._host_alone:
            return self._why_not_for_host()
        if small_alone:
            return self._why_not_for_replaced()
        return ""

    def note(self, judged: Sequence[Finding], rerun_s: float) -> None:
        """Note the findings, and the seconds of the re-runs, for suspects that leave as much as this one."""
        if self._small_alone:
            left = self._arrays.left
            grew = any(one.failed or one.bytes_per_run for one in judged)
            self._knowledge.replaced.note([left.handle(identity) for identity in left.living()], rerun_s, grew=grew)

    def note_vain(self, rerun_s: float) -> None:
        """Note that the re-runs have found nothing."""
        if self._host_alone:
            self._knowledge.host_reruns.note_vain(rerun_s, self._host_grown)

    def _why_not_for_replaced(self) -> str:
        knowledge, left = self._knowledge, self._arrays.left
        collection = full_collection(knowledge.safeguards)
        why = knowledge.replaced.why_not(
            left.readings().values(), self._subject.expected_s, knowledge.elapsed_s, lambda: list(collection.steps())
        )
        if left.are_all_gone():
            return ""
        if (self._subject.expected_s or 0.0) > QUICK_RERUN_S:
            return why
        self.doubted = why
        return ""

    def _why_not_for_host(self) -> str:
        grown = self._host_grown = self._counters.unexplained_host
        subject, untracked, adds = self._subject, self._untracked, self._untracked.adds_arrays
        return self._knowledge.host_reruns.why_not(
            subject.expected_s,
            self._knowledge.elapsed_s,
            grown,
            # Growth that no new array explains was worth a doubt already (`suspicion.is_worth_a_check`).
            small=adds and grown < self._policy.retained_bytes,
            may_wait=lambda: subject.precedes_others and not (adds and untracked.may_explain_growth()),
        )
