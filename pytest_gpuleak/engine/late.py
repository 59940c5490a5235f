"""Search for the holders of many findings at once, which takes as long for a hundred arrays as for one.

Verdicts are reached by weak handles, and the findings wait here for the names of their holders. Loaded with the first
suspect.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.engine.describe import described
from pytest_gpuleak.engine.holders import search_together
from pytest_gpuleak.engine.judge.arrays import conclude, judge
from pytest_gpuleak.engine.limits import MOST_ARRAYS_WAITING, MOST_WAITING
from pytest_gpuleak.engine.stages import ACCOUNT, EXPLAIN_LATE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuleak.engine.holders import Holders
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.model.evidence import Evidence
    from pytest_gpuleak.model.findings import Finding, Judged
    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.model.records import Verdict


class Explained(NamedTuple):
    """A test's findings with holders, which fail as they did before."""

    nodeid: str
    verdict: Verdict
    findings: tuple[Finding, ...]


class Waiting(NamedTuple):
    """A judged test, with what its runs left: weak handles and plain data, no array, and nothing of pytest's.

    Of the `described` findings the first `of_arrays` are the arrays', which have no holders yet; `how` tells how its runs were
    judged.
    """

    nodeid: str
    policy: Policy
    how: Judged
    described: tuple[Finding, ...]
    of_arrays: int
    holders: Holders
    evidence: Callable[[], Evidence]


class LateSearch:
    """The findings of one process that wait for their holders."""

    def __init__(self, tracker: RunTracker, knowledge: SessionKnowledge) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self._waiting: list[Waiting] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    @property
    def is_due(self) -> bool:
        """Whether so much waits that it is to be explained now."""
        arrays = sum(len(one.holders.runs.living()) for one in self._waiting) if len(self._waiting) > 1 else 0
        return len(self._waiting) >= MOST_WAITING or arrays >= MOST_ARRAYS_WAITING

    def take(self, waiting: Waiting) -> None:
        """Let the findings on a test's arrays wait."""
        self._waiting.append(waiting)

    def explain(self) -> list[Explained]:
        """Search for all holders at once, and return the findings with them, in the order of the tests."""
        waiting = self._waiting
        if not waiting:
            return []
        what = waiting[0].nodeid if len(waiting) == 1 else f"{len(waiting)} tests"
        safeguards = self._knowledge.safeguards
        with safeguards.guard(EXPLAIN_LATE, waiting[0].nodeid) as stage, safeguards.searching(what):
            self._search(waiting)
        return self._told(f"the search failed: {stage.fault}")

    def give_up(self, why: str) -> list[Explained]:
        """Return the findings without a search for their holders, and say `why`."""
        return self._told(why)

    def _told(self, why: str) -> list[Explained]:
        waiting = self._waiting
        for one in waiting:
            if one.holders.waits:
                one.holders.give_up(why)
        findings = [Explained(one.nodeid, *self._judged_safely(one)) for one in waiting]
        # Not before: what Ctrl-C interrupts here is searched for when the session finishes.
        self._waiting = []
        return findings

    def _search(self, waiting: Sequence[Waiting]) -> None:
        for one in waiting:
            one.holders.runs.poll("count")
        search_together([one.holders for one in waiting], self._tracker, self._knowledge)
        for one in waiting:
            with self._knowledge.safeguards.guard(ACCOUNT, one.nodeid):
                one.holders.note_leftovers(one.nodeid)

    def _judged_safely(self, one: Waiting) -> tuple[Verdict, tuple[Finding, ...]]:
        with self._knowledge.safeguards.guard(EXPLAIN_LATE, one.nodeid):
            return self._judged(one)
        return conclude(one.described, one.policy)

    def _judged(self, one: Waiting) -> tuple[Verdict, tuple[Finding, ...]]:
        """Group the arrays' findings again, now by holder; the others stay as they are, behind these."""
        of_arrays, beside = one.described[: one.of_arrays], one.described[one.of_arrays :]
        findings = judge(one.evidence(), one.policy)
        fails = any(found.failed for found in of_arrays)
        if fails != any(found.failed for found in findings):
            # The test has been reported: the names change no verdict.
            findings = tuple(dataclasses.replace(found, failed=fails and found.kind == "growing") for found in findings)
        how = dataclasses.replace(one.how, search_cut=one.holders.search_cut)
        told = [described(found, how, self._knowledge, one.nodeid) for found in findings]
        return conclude((*told, *beside), one.policy)
