"""Tell whether each run of a test compiles more programs, by what the frameworks keep before and after a re-run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpuleak.engine.confirm.reruns import AddedByReruns
from pytest_gpuleak.engine.limits import INSTRUCTION_BYTES, PROGRAM_BYTES
from pytest_gpuleak.heap.collector import collect, collect_young
from pytest_gpuleak.model.findings import Contribution, Finding
from pytest_gpuleak.model.fingerprint import fingerprint

if TYPE_CHECKING:
    from pytest_gpuleak.engine.subject import Suspect


class ProgramEvidence(AddedByReruns[Counter[str]]):
    """Collect the programs that a suspect's re-runs have compiled: what the first run has compiled is found again."""

    def __init__(self, suspect: Suspect) -> None:
        super().__init__()
        self._suspect = suspect
        self._before: Counter[str] = Counter()
        self.first_run_bytes = 0
        """Host bytes of the programs that the first run has compiled and that are still there."""
        self.last_run_bytes = 0
        """Host bytes of the programs that the last re-run has compiled and that are still there."""

    @property
    def wanted(self) -> bool:
        """Whether the first run has compiled, so that a re-run tells whether each run does."""
        return bool(self.first_run_bytes)

    def end_first_run(self) -> None:
        """Compare the number of programs with the last one known."""
        count = self._suspect.tracker.frameworks.programs_alive()
        self.first_run_bytes = max(count - self._suspect.knowledge.programs, 0) * PROGRAM_BYTES
        self._suspect.knowledge.programs = count

    def expect_run(self) -> None:
        """Note before a re-run which programs there are."""
        self._before = Counter(self._names())

    def add_run(self) -> bool:
        """Note what the re-run has added, less garbage; return whether the whole heap was collected for that."""
        if self._new():
            collect_young()
        added = self._new()
        collected = bool(added)
        if collected:
            with self._suspect.tracker.detector.whole_heap():
                collect(2)
            added = self._new()
        frameworks = self._suspect.tracker.frameworks
        instructions = frameworks.program_instructions(added) if added else 0
        self.last_run_bytes = added.total() * PROGRAM_BYTES + instructions * INSTRUCTION_BYTES
        self._added.append(added)
        self._suspect.knowledge.programs = frameworks.programs_alive()
        return collected

    def judge(self) -> tuple[Finding, ...]:
        """Return a finding, which fails nothing, if every re-run has compiled more."""
        return (_finding(self._added[-1]),) if self.grows else ()

    def _new(self) -> Counter[str]:
        return Counter(self._names()) - self._before

    def _names(self) -> list[str]:
        return self._suspect.tracker.frameworks.program_names()


MAX_SHOWN = 20
"""Programs that are listed."""

HINT = (
    "Compile a function once, at module level, and call it with what compares equal from run to run: arrays in place of "
    "Python numbers, static arguments with `__eq__` and `__hash__` by value."
)


def _finding(added: Counter[str]) -> Finding:
    parts = (Contribution(name, 0, count) for name, count in added.most_common(MAX_SHOWN))
    return Finding(
        kind="recompiled",
        failed=False,
        device="cpu",
        count=sum(added.values()),
        bytes=0,
        bytes_per_run=0,
        fingerprint=fingerprint("recompiled", None),
        metric="programs",
        contributions=tuple(parts),
        hint=HINT,
    )
