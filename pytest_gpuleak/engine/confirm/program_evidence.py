"""Tell whether each run of a test compiles more programs, by what the frameworks keep before and after a re-run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpuleak.engine.judge.programs import judge_programs
from pytest_gpuleak.heap.collector import collect, collect_young

if TYPE_CHECKING:
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.engine.subject import Subject
    from pytest_gpuleak.model.findings import Finding

FREE_S = 2.0
"""Seconds of a session that tests may be run again for programs alone."""

SHARE = 0.02
"""Further part of the session's time that such re-runs may take: nearly every test of some suites compiles."""


class ProgramEvidence:
    """Collect which programs the re-runs of one suspect have added.

    Compiling takes a MiB of the host's memory, so a test that compiles is a suspect; one that is run again finds what
    the first run has compiled.
    """

    def __init__(self, tracker: RunTracker, knowledge: SessionKnowledge, subject: Subject) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self._subject = subject
        self._before: Counter[str] = Counter()
        self._added: list[Counter[str]] = []
        self.wanted = False
        """Whether the first run may have compiled, and a re-run for that alone is worth its time."""

    def end_first_run(self) -> None:
        """Compare the number of programs with the last one known."""
        count = len(self._names())
        compiled, self._knowledge.programs = count > self._knowledge.programs, count
        expected_s, knowledge = self._subject.expected_s, self._knowledge
        limit_s = FREE_S + SHARE * knowledge.elapsed_s
        self.wanted = compiled and expected_s is not None and knowledge.program_reruns_s + expected_s <= limit_s

    @property
    def grows(self) -> bool:
        """Whether each re-run so far has added a program."""
        return bool(self._added) and all(self._added)

    def expect_run(self) -> None:
        """Note before a re-run which programs there are."""
        self._before = Counter(self._names())

    def add_run(self) -> None:
        """Note what the re-run has added, less what a collection frees."""
        added = self._new()
        if added:
            collect_young()
            added = self._new()
        if added:
            with self._tracker.detector.whole_heap():
                collect(2)
            added = self._new()
        self._added.append(added)
        self._knowledge.programs = len(self._names())

    def forget_reruns(self) -> None:
        """Forget all re-runs, because a re-run could not be recorded to its end."""
        self._added.clear()

    def judge(self) -> tuple[Finding, ...]:
        """Return a finding if every re-run has compiled more."""
        return judge_programs(self._added)

    def _new(self) -> Counter[str]:
        return Counter(self._names()) - self._before

    def _names(self) -> list[str]:
        return self._tracker.frameworks.program_names()
