"""Look, after a re-run, at what is alive: at a glance where that decides, with a search where holders are of use."""

from __future__ import annotations

from time import process_time
from typing import TYPE_CHECKING

from pytest_gpuleak.engine.waiting import is_sure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuleak.adapters.protocol import OriginLog
    from pytest_gpuleak.engine.confirm.array_evidence import ArrayEvidence
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.engine.waiting import WaitingFindings
    from pytest_gpuleak.model.findings import Finding


class Looks:
    """Choose how to look at one suspect's arrays.

    While `brief`, a glance may decide: what is small and does not grow is a note, and if no note is read, its holder is
    of no use. With `waives_lines` the next re-run is not traced; where it shows growth, another is. Where growth is
    doubtful, another is made too. `owes_search` tells that growth was seen at a glance alone.
    """

    def __init__(
        self,
        arrays: ArrayEvidence,
        knowledge: SessionKnowledge,
        nodeid: str,
        waiting: WaitingFindings | None,
        judge_all: Callable[[], Sequence[Finding]],
        judge_arrays: Callable[[], Sequence[Finding]],
    ) -> None:
        self.brief = False
        self.waives_lines = False
        self.owes_search = False
        self._arrays = arrays
        self._knowledge = knowledge
        self._nodeid = nodeid
        self._waiting = waiting
        self._judge_all = judge_all
        self._judge_arrays = judge_arrays

    @property
    def comes_again(self) -> bool:
        """Whether growth that the last re-run shows is looked at in another."""
        return self.waives_lines or self._arrays.is_doubtful

    def at_unconfirmed(self) -> None:
        """Look at what the only run has left."""
        if self.brief:
            self._glance()
        else:
            self.search()

    def after_rerun(
        self, origins: OriginLog, settle: Callable[[], object], *, may_wait: bool, may_collect: bool = True
    ) -> bool:
        """Look at what is alive after a re-run, whose creating lines are `origins`; tell whether that decides.

        `settle` takes the steps that were put off; with `may_wait`, a search for many suspects is to come. Unless it
        `may_collect`, a look does not decide on what seems to grow if no known root leads to it: it may be garbage.
        """
        arrays = self._arrays
        if self.brief:
            if not may_collect and self._may_grow_unknown(origins):
                return False
            if self._is_a_note_at_a_glance(origins) and not arrays.may_replace_garbage:
                return True
            self._recognise_late()
            settle()
            if self._is_a_note_at_a_glance(origins):
                return True  # what the re-run replaced was waiting in a cycle
            self.brief = False
            self.owes_search = self.comes_again and any(found.bytes_per_run for found in self._judge_all())
            if self.owes_search:
                return True
            arrays.looks.forget_last()
        may_wait = may_wait and not arrays.looks.recognised and not self._teaches()
        if not (may_wait and is_sure(arrays, self._judge_arrays, origins)):
            self.search(origins)
            if arrays.may_hold_garbage and any(found.bytes_per_run for found in self._judge_all()):
                settle()  # what the re-run replaced was in a cycle, and its own arrays were recognised, so not collected
                arrays.looks.forget_last()
                self.search(origins)
        self.owes_search = False
        return True

    def search(self, origins: OriginLog | None = None) -> None:
        """Search for the holders of what is alive."""
        before, began = self._arrays.looks.searches, process_time()
        with self._knowledge.safeguards.searching(self._nodeid):
            self._arrays.looks.look(origins)
        if self._waiting is not None:
            self._waiting.searches += self._arrays.looks.searches - before
            self._waiting.searched_s += process_time() - began

    def catch_up(self) -> None:
        """Search for the holders after all, because the re-run that was to be traced did not come to its end."""
        if self.owes_search:
            self.owes_search = False
            self._arrays.looks.forget_last()
            self.search()

    def _may_grow_unknown(self, origins: OriginLog) -> bool:
        self._glance(origins)
        grows = self._fails
        self._arrays.looks.forget_last()
        return grows and not self._arrays.recognise_late()

    def _recognise_late(self) -> None:
        arrays, late_looks = self._arrays, self._knowledge.late_looks
        if not arrays.recognise_late() and late_looks.is_due():
            late_looks.note(useful=arrays.recognise_late(among_old=True))

    def _teaches(self) -> bool:
        """Tell whether to search now, for others' sake: of known culprits' arrays, the heap need not be collected."""
        if self._waiting is None or not (self._arrays.looks.collected and self._waiting.teaches_next()):
            return False
        self._knowledge.late_looks.note(useful=True)
        return True

    def _glance(self, origins: OriginLog | None = None) -> None:
        if self._knowledge.notes_are_read:
            self._arrays.looks.look_without_search(origins)
        else:
            self._arrays.looks.look_briefly(origins)

    def _is_a_note_at_a_glance(self, origins: OriginLog) -> bool:
        """Ask the weak handles alone whether what is alive fails nothing, so that its holder is of no use now."""
        self._glance(origins)
        if self._fails and not self._knowledge.notes_are_read:
            self._arrays.looks.forget_last()
            self._arrays.looks.look_at_shared(origins)  # a replaced view of older memory seems to live
        return not self._fails

    @property
    def _fails(self) -> bool:
        return any(found.failed or found.bytes_per_run for found in self._judge_all())
