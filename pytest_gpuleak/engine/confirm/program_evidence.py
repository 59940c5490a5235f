"""Tell whether each run of a test compiles more programs, by what the frameworks keep before and after a re-run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpuleak.engine.limits import PROGRAM_BYTES
from pytest_gpuleak.heap.collector import collect, collect_young
from pytest_gpuleak.model.findings import Contribution, Finding
from pytest_gpuleak.model.fingerprint import fingerprint
from pytest_gpuleak.model.readings import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.model.readings import Growth


class ProgramEvidence:
    """Collect the programs that a suspect's re-runs have compiled: what the first run has compiled is found again."""

    def __init__(self, tracker: RunTracker, knowledge: SessionKnowledge) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self._before: Counter[str] = Counter()
        self._added: list[Counter[str]] = []
        self._unsure = False
        self.first_run_bytes = 0
        """Host bytes of the programs that the first run has compiled and that are still there."""
        self.collected = False
        """Whether the whole heap was collected since the last re-run."""

    @property
    def wanted(self) -> bool:
        """Whether the first run has compiled, so that a re-run tells whether each run does."""
        return bool(self.first_run_bytes)

    def end_first_run(self) -> None:
        """Compare the number of programs with the last one known."""
        count = self._tracker.frameworks.programs_alive()
        self.first_run_bytes = max(count - self._knowledge.programs, 0) * PROGRAM_BYTES
        self._knowledge.programs = count

    def explained(self, growth: Growth, least: int, again: Callable[[], Growth]) -> Growth:
        """Return a re-run's growth with its programs' host bytes; what exceeds `least` beside them is read `again`."""
        growth = growth._replace(compiled=self._last_run_bytes)
        host = [size for (device, _), size in growth.bytes.items() if device == HOST]
        if self._unsure and min(host, default=0) - growth.imported - growth.compiled > least:
            self._make_sure()
            growth = growth.lowest(again())._replace(compiled=self._last_run_bytes)
        return growth

    @property
    def _last_run_bytes(self) -> int:
        return self._added[-1].total() * PROGRAM_BYTES if self._added else 0

    @property
    def grows(self) -> bool:
        """Whether each re-run so far has added a program."""
        self._make_sure()
        return bool(self._added) and all(self._added)

    def expect_run(self) -> None:
        """Note before a re-run which programs there are."""
        self._make_sure()
        self._before = Counter(self._names())

    def add_run(self) -> None:
        """Note what the re-run has added, less what a collection of the young objects frees."""
        added = self._new()
        if added:
            collect_young()
            added = self._new()
        self._unsure, self.collected = bool(added), False
        self._added.append(added)
        self._knowledge.programs = self._tracker.frameworks.programs_alive()

    def _make_sure(self) -> None:
        """Collect the whole heap, once somebody asks for what the last re-run has added: a tenth of a second."""
        if self._unsure:
            self._unsure = False
            with self._tracker.detector.whole_heap():
                collect(2)
            self.collected = True
            self._added[-1] = self._new()
            self._knowledge.programs = self._tracker.frameworks.programs_alive()

    def forget_reruns(self) -> None:
        """Forget all re-runs, because a re-run could not be recorded to its end."""
        self._added.clear()
        self._unsure = False

    def judge(self) -> tuple[Finding, ...]:
        """Return a finding if every re-run has compiled more."""
        self._make_sure()
        return judge_programs(self._added)

    def _new(self) -> Counter[str]:
        return Counter(self._names()) - self._before

    def _names(self) -> list[str]:
        return self._tracker.frameworks.program_names()


MAX_SHOWN = 20
"""Programs that are listed."""

HINT = (
    "Compile a function once, at module level, and call it with what compares equal from run to run: arrays in place of "
    "Python numbers, static arguments with `__eq__` and `__hash__` by value."
)


def judge_programs(added: Sequence[Counter[str]]) -> tuple[Finding, ...]:
    """Return one finding, which fails nothing, if every re-run has added programs; `added` counts them by name."""
    if not added or not all(added):
        return ()
    last = added[-1]
    parts = [Contribution(name, 0, count) for name, count in last.most_common(MAX_SHOWN)]
    return (
        Finding(
            kind="recompiled",
            failed=False,
            device="cpu",
            count=sum(last.values()),
            bytes=0,
            bytes_per_run=0,
            fingerprint=fingerprint("recompiled", None),
            metric="programs",
            contributions=tuple(parts),
            hint=HINT,
        ),
    )
