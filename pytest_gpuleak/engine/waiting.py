"""Search for the holders of many findings at once, which takes as long for a hundred arrays as for one.

Once a few suspects have been searched for by themselves, the verdicts of the next are reached by weak handles, and
their findings wait here. Loaded with the first suspect.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuleak.adapters.arrays import array_types, select_arrays
from pytest_gpuleak.engine.confirm.holder_search import GRAPHS_STEPS, search_holders
from pytest_gpuleak.engine.describe import described
from pytest_gpuleak.engine.judge.arrays import conclude, judge
from pytest_gpuleak.engine.settle.attempts import Backoff
from pytest_gpuleak.engine.stages import ACCOUNT, EXPLAIN_LATE
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.collector import get_objects
from pytest_gpuleak.heap.referrers import PausedCollector
from pytest_gpuleak.model.findings import FREED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuleak.adapters.protocol import OriginLog
    from pytest_gpuleak.engine.confirm.array_evidence import ArrayEvidence
    from pytest_gpuleak.engine.describe import Supplement
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.engine.subject import Subject
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.model.records import Verdict

SEARCHES_AT_ONCE: Final = 5
"""Suspects of a session that are searched for by themselves. They teach which holders are known culprits."""

FIRST_TAUGHT: Final = 4
MOST_TAUGHT: Final = 64
"""After these, one of so many suspects teaches, if the heap had to be collected for it: 0.25 s of 0.9 in a suite of JAX."""

SEARCHED_S: Final = 1.0
"""Seconds of such searches after which the next suspects wait all the same: one takes 1.5 s on a heap of 500,000 objects."""

MOST_WAITING: Final = 200
"""Findings' tests that wait before they are explained together."""

MOST_ARRAYS: Final = 20_000
"""Arrays that wait before they are explained together."""

STEPS: Final = 80_000_000
"""Steps (`heap.budget`) of a search for all that waits."""

STEPS_EACH: Final = 1_000_000
"""Steps that each test adds to `STEPS`: most of one heap's search is shared, and the naming is not."""


TEACHING_SHARE: Final = 0.05
"""Share of the session's time, beyond `SEARCHED_S`, after which no suspect is searched for to teach its holder."""

LOSING_SHARE: Final = 0.1
"""Share of the session's time that searches for one suspect may take where what waited was freed meanwhile."""


def is_sure(arrays: ArrayEvidence, judge_arrays: Callable[[], Sequence[Finding]], origins: OriginLog) -> bool:
    """Look at the weak handles, and tell whether the verdict is the same whatever the holders are; if not, forget that look.

    What grows is alive twice, which no frame of the runner's can bring about. What does not grow, and is large enough to
    fail, may be a local variable of such a frame.
    """
    if not arrays.left.living():
        return False
    arrays.looks.look_without_search(origins)
    failed = [found for found in judge_arrays() if found.failed]
    if not failed or any(found.kind == "growing" for found in failed):
        return True
    arrays.looks.forget_last()
    return False


class Explained(NamedTuple):
    """A test's findings with holders, which fail as they did before, and its share of the search's seconds."""

    nodeid: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    search_s: float


class Judged(NamedTuple):
    """The verdict on a test whose holders are not known yet: findings, and the same `described` with places and hints.

    `why` tells why no re-run ended; `of_arrays` are those of the findings that the arrays gave.
    """

    nodeid: str
    policy: Policy
    why: str
    findings: tuple[Finding, ...]
    described: tuple[Finding, ...]
    of_arrays: tuple[Finding, ...]


class WaitingFinding(NamedTuple):
    """A judged test, with what its runs left: weak handles and plain data, no array, and nothing of pytest's."""

    judged: Judged
    arrays: ArrayEvidence
    supplement: Supplement

    @property
    def is_lost(self) -> bool:
        """Whether a leak's memory has been freed, so that nobody will know who held it: by a cache of a limited size, say."""
        return any(found.failed for found in self.judged.of_arrays) and self.arrays.left.are_all_gone()


class WaitingFindings:
    """The findings of one process that wait for their holders."""

    def __init__(self, tracker: RunTracker, knowledge: SessionKnowledge) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self._waiting: list[WaitingFinding] = []
        self._arrays = 0
        self._loses = False
        self._teaching = Backoff(FIRST_TAUGHT, MOST_TAUGHT)
        self.searches = 0
        """Searches so far that were made for one suspect."""
        self.searched_s = 0.0
        """Seconds that they have taken."""

    def may_take(self, policy: Policy, subject: Subject) -> bool:
        """Tell whether a subject's findings may wait, if weak handles alone give the verdict.

        With several re-runs or a growth limit, growth is told by holder; what a thread's frame holds is not the test's.
        """
        return (
            (self.searches >= SEARCHES_AT_ONCE or self.searched_s >= SEARCHED_S)
            and not (self._loses and self.searched_s < LOSING_SHARE * self._knowledge.elapsed_s)
            and policy.confirm == 1
            and not (policy.growing_tensors or policy.growing_bytes)
            and not (subject.counts_running_frames or self._tracker.threaded)
        )

    def teaches_next(self) -> bool:
        """Tell whether a suspect whose holders are no known culprits is searched for by itself, for later ones' sake."""
        affordable = self.searched_s <= SEARCHED_S + TEACHING_SHARE * self._knowledge.elapsed_s
        return affordable and self._teaching.is_due()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    @property
    def is_due(self) -> bool:
        """Whether so much waits, or a leak's memory has gone meanwhile, that the rest is to be explained now."""
        return (
            any(one.is_lost for one in self._waiting)
            or len(self._waiting) >= MOST_WAITING
            or self._arrays >= MOST_ARRAYS
        )

    def take(self, judged: Judged, arrays: ArrayEvidence, supplement: Supplement) -> None:
        """Let the findings on a test's arrays wait."""
        self._waiting.append(WaitingFinding(judged, arrays, supplement))
        self._arrays += len(arrays.left.by_id)

    def explain(self) -> list[Explained]:
        """Search for all holders at once, and return the findings with them, in the order of the tests."""
        began, waiting = perf_counter(), self._waiting
        if not waiting:
            return []
        self._loses = self._loses or any(one.is_lost for one in waiting)
        what = waiting[0].judged.nodeid if len(waiting) == 1 else f"{len(waiting)} tests"
        safeguards = self._knowledge.safeguards
        with safeguards.guard(EXPLAIN_LATE, waiting[0].judged.nodeid) as stage, safeguards.searching(what):
            self._search(waiting)
        return self._told(f"the search failed: {stage.fault}", began)

    def give_up(self, why: str) -> list[Explained]:
        """Return the findings without a search for their holders, and say `why`."""
        return self._told(why, perf_counter())

    def _told(self, why: str, began: float) -> list[Explained]:
        waiting = self._waiting
        for one in waiting:
            if one.arrays.looks.waits:
                one.arrays.looks.give_up(why)
        findings = [self._judged_safely(one) for one in waiting]
        share_s = (perf_counter() - began) / len(waiting)
        # Not before: what Ctrl-C interrupts here is searched for when the session finishes.
        self._waiting, self._arrays = [], 0
        return [Explained(one.judged.nodeid, *found, share_s) for one, found in zip(waiting, findings, strict=True)]

    def _search(self, waiting: Sequence[WaitingFinding]) -> None:
        detector, frameworks = self._tracker.detector, self._tracker.frameworks
        wanted: dict[int, list[int]] = defaultdict(list)
        for number, one in enumerate(waiting):
            for identity in one.arrays.left.living():
                wanted[identity].append(number)
        with detector.whole_heap(), PausedCollector():
            targets: list[object] = []
            members: list[list[int]] = [[] for _ in waiting]
            for array in select_arrays(get_objects(), array_types(self._tracker.guarded_arrays)):
                owners = [number for number in wanted.get(id(array), ()) if waiting[number].arrays.left.is_left(array)]
                for number in owners:
                    members[number].append(len(targets))
                if owners:
                    targets.append(array)
            array = None
            budget = Budget(STEPS + STEPS_EACH * len(waiting))
            groups = {id(targets[place]): number for number, places in enumerate(members) for place in places}
            found = search_holders(targets, self._knowledge.culprits, frameworks, budget, groups) if targets else []
            graphs = Budget(GRAPHS_STEPS * len(waiting))
            for one, places in zip(waiting, members, strict=True):
                one.arrays.looks.take_holders([targets[i] for i in places], [found[i] for i in places], graphs)
            targets.clear()
        for one in waiting:
            with self._knowledge.safeguards.guard(ACCOUNT, one.judged.nodeid):
                for left in one.arrays.leftovers():
                    self._knowledge.left_behind.note(one.judged.nodeid, *left)

    def _judged_safely(self, one: WaitingFinding) -> tuple[Verdict, tuple[Finding, ...]]:
        judged = one.judged
        with self._knowledge.safeguards.guard(EXPLAIN_LATE, judged.nodeid):
            return self._judged(one)
        return conclude(judged.described, judged.policy)

    def _judged(self, one: WaitingFinding) -> tuple[Verdict, tuple[Finding, ...]]:
        """Judge the arrays again, now by holder; the other findings stay as they are, around the arrays'."""
        nodeid, policy, why, before, described_before, of_arrays = one.judged
        places = [place for place, found in enumerate(before) if found in of_arrays]
        first = places[0] if places else 0
        beside = [found for place, found in enumerate(described_before) if place not in places]
        findings = judge(one.supplement.added_to(one.arrays.evidence()), policy)
        if any(found.failed for found in of_arrays) and not any(found.failed for found in findings):
            # The test has been reported as failed: the end of the run cannot say otherwise.
            findings = tuple(dataclasses.replace(found, failed=found.kind == "growing") for found in findings)
        # A note is about what is still there.
        left = [found for found in findings if found.failed or found.holder != FREED]
        told = [described(found, why, self._knowledge, nodeid) for found in left]
        return conclude((*beside[:first], *told, *beside[first:]), policy)
