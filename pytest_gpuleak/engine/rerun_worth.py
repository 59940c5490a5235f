"""Decide whether a re-run of one suspect is worth its time, and note for the next ones what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuleak.engine.settle.steps import full_collection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.engine.confirm.array_evidence import ArrayEvidence
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.engine.subject import Subject
    from pytest_gpuleak.model.findings import Finding


QUICK_RERUN_S: Final = 0.005
"""Seconds of a re-run that is made all the same: a leak that hangs on a known root is then told from what was replaced."""


class RerunWorth:
    """Ask the records of the session whether what a suspect has left is worth a re-run."""

    def __init__(
        self,
        knowledge: SessionKnowledge,
        subject: Subject,
        arrays: ArrayEvidence,
    ) -> None:
        self._knowledge = knowledge
        self._subject = subject
        self._arrays = arrays
        self._small_alone = False
        self.doubted = ""
        """Why what a re-run shows is not worth a collection of the whole heap; empty if it is."""

    def why_not(self, *, small_alone: bool) -> str:
        """Tell why the suspect is not run again; empty if it is.

        `small_alone` tells whether arrays that fail by growth alone are all that it left, and no note on them is read.
        """
        self._small_alone = small_alone
        if small_alone:
            return self._why_not_for_replaced()
        return ""

    def note(self, judged: Sequence[Finding], rerun_s: float) -> None:
        """Note the findings, and the seconds of the re-runs, for suspects that leave as much as this one."""
        if self._small_alone:
            left = self._arrays.left
            grew = any(one.failed or one.bytes_per_run for one in judged)
            self._knowledge.replaced.note([left.handle(identity) for identity in left.living()], rerun_s, grew=grew)

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
