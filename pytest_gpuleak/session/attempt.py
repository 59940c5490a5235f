"""Record the running attempt of a test as plain data: times, outcome, and errors of its check."""

from __future__ import annotations

import dataclasses
import os
from time import perf_counter
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.model.outcomes import CHECKED, Outcome, TestRecord
from pytest_gpuleak.session.faults import Faults
from pytest_gpuleak.session.peak_hooks import shared_meter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.engine.detect.counters import CounterWatch
    from pytest_gpuleak.engine.detect.fixture_ownership import OwnedSetup
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.stages import Guard, Stage
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.helpers import HelperReading
    from pytest_gpuleak.model.outcomes import Verdict
    from pytest_gpuleak.model.policy import Policy, Settings

OUTCOME_WORDS: dict[Outcome, str] = {
    "failed": "failed", "skipped": "was skipped", "xfailed": "xfailed", "error": "erred",
}  # fmt: skip


TRACKER: pytest.StashKey[RunTracker] = pytest.StashKey()
"""Key in the config's stash of the tracker of runs, where the leak check is on."""


@dataclasses.dataclass(eq=False, repr=False)
class Attempt:
    """An attempt of a test, while it runs."""

    nodeid: str
    policy: Policy
    outcome: Outcome = "passed"
    why: str | None = None
    duration_s: float = 0.0
    overhead_s: float = 0.0
    suspect_s: dict[str, float] = dataclasses.field(default_factory=dict)
    helpers: tuple[HelperReading, ...] = ()
    ends: bool = False
    """Whether its teardown has begun: a wider fixture may be torn down in its setup, for another parameter."""
    is_rank: bool = False
    """Whether its call ended in a group of several ranks, which a fixture may have left since."""

    def note_suspect(self, part: str, began: float) -> None:
        """Add the seconds since `began` to a suspect's ``check``, or to its parts ``reruns`` and ``search``."""
        self.suspect_s[part] = self.suspect_s.get(part, 0.0) + perf_counter() - began


@dataclasses.dataclass(eq=False, repr=False)
class EndedRun:
    """A test whose teardown has ended. `seen` is called once what was left is known, before user code runs again."""

    item: pytest.Item
    nextitem: pytest.Item | None
    attempt: Attempt
    seen: Callable[[], object]
    rebuilt: Sequence[OwnedSetup] = ()
    """The wider fixtures that were torn down, and are set up again for a re-run."""
    left_in_fixtures: bool = False
    """Whether the test may have left something in these."""


class AttemptLog:
    """Follow the attempts of one process's tests, and create their records; `lines` are shown at the end of the run."""

    def __init__(self, config: pytest.Config, settings: Settings, worker: str, lines: list[str]) -> None:
        self.config = config
        self.worker = worker
        self.root = str(config.rootpath)
        self.attempt: Attempt | None = None
        self.rerunning = False
        """Whether a test is being run again to confirm a leak, which is no attempt of the user's."""
        self.process = os.getpid()
        self.hangs = False
        """Whether the session is being ended while a test hangs: the heap is then not examined."""
        self.upcoming: tuple[str, ...] = ()
        """Nodeid of the next test, once a test has been judged."""
        self.note_rerun: Callable[[TestRecord], object] | None = None
        """Takes the record for a test whose process dies during a re-run; None: no report is written."""
        self.settings = settings
        self.lines = lines
        self.detailed = False
        """Whether something reads the counters, peaks and helpers' readings of a clean test."""
        self.faults = Faults(config, self.root)
        """Failures of the check itself."""

    @property
    def nodeid(self) -> str:
        """Return the running test's nodeid; empty between tests."""
        return "" if self.attempt is None else self.attempt.nodeid

    @property
    def policy(self) -> Policy:
        """Return the running test's policy."""
        return self.settings.policy if self.attempt is None else self.attempt.policy

    def begin(self, nodeid: str, policy: Policy) -> Attempt:
        """Begin an attempt, with the test's setup."""
        self.attempt = attempt = Attempt(nodeid, policy)
        return attempt

    def note_report(self, report: pytest.TestReport) -> None:
        """Note what a phase's report says of the test's own outcome."""
        attempt = self.attempt
        if attempt is None:
            return
        attempt.duration_s += report.duration
        if report.outcome == "passed" and not hasattr(report, "wasxfail"):
            return
        outcome = outcome_of(report)
        if attempt.outcome in CHECKED:
            attempt.outcome = outcome
            if outcome not in CHECKED:
                attempt.why = f"it {OUTCOME_WORDS[outcome]} in {report.when}: its traceback may hold its locals"

    def note_failure(self, nodeid: str) -> None:
        """Note a failed report of the running test beside the reports of its phases (a sub-test's)."""
        attempt = self.attempt
        if attempt is not None and attempt.nodeid == nodeid and attempt.outcome in CHECKED:
            attempt.outcome, attempt.why = "failed", "a sub-test failed: its traceback may hold its locals"

    def charge(self, began: float) -> None:
        """Add the time since `began` (`time.perf_counter`) to the test's overhead."""
        if self.attempt is not None:
            self.attempt.overhead_s += perf_counter() - began

    def call_ends(self, frameworks: Frameworks) -> None:
        """Note whether the test ran beside other ranks, before its teardown destroys their group."""
        if self.attempt is not None:
            try:
                self.attempt.is_rank = frameworks.is_distributed()
            except Exception:  # noqa: BLE001 - a framework that is half imported: asked again before a re-run
                self.attempt.is_rank = False

    def read_memory(self, counters: CounterWatch) -> dict[str, dict[str, int]]:
        """Return the counters around the test and its peaks, as the report has them; nothing where that fails."""
        try:
            peaks = {device: peak.allocated for device, peak in shared_meter(self.config).peaks().items()}
            return counters.record({device: peak.total + peak.workspaces for device, peak in peaks.items()})
        except Exception as error:  # noqa: BLE001 - figures for a reader: the verdict stands without them
            from pytest_gpuleak.engine.stages import FIGURES

            self.faults.note(FIGURES, error, self.nodeid)
            return {}

    def end(
        self,
        item: pytest.Item,
        verdict: Verdict,
        findings: tuple[Finding, ...],
        memory: dict[str, dict[str, int]],
        began: float,
    ) -> TestRecord:
        """End the attempt and return its record. A fault that may hide something turns ``clean`` into ``unchecked``."""
        attempt = self.attempt
        assert attempt is not None
        why = attempt.why
        if verdict == "clean" and self.faults.blinding:
            verdict, why = "unchecked", self.faults.blinding
        attempt.overhead_s += perf_counter() - began
        record = self._record(item, verdict, why, memory, findings)
        self._forget()
        return record

    def give_up(self, item: pytest.Item, why: str) -> TestRecord:
        """End an attempt that cannot be checked, and return its record."""
        record = self.unchecked(item, why)
        self._forget()
        self.rerunning = False
        return record

    def unchecked(self, item: pytest.Item | None, why: str) -> TestRecord:
        """Return the record of the running attempt, without a verdict."""
        return self._record(item, "unchecked", why)

    def _record(
        self,
        item: pytest.Item | None,
        verdict: Verdict,
        why: str | None,
        memory: dict[str, dict[str, int]] | None = None,
        findings: tuple[Finding, ...] = (),
    ) -> TestRecord:
        attempt = self.attempt or Attempt("" if item is None else item.nodeid, self.settings.policy)
        file, line, _ = (None, None, "") if item is None else item.location
        # By position: seventeen keywords take a hundredth of what a clean test costs.
        return TestRecord(
            attempt.nodeid if item is None else item.nodeid,
            verdict,
            why,
            attempt.outcome,
            self.worker,
            attempt.duration_s,
            attempt.overhead_s,
            {} if memory is None else memory,
            findings,
            attempt.policy.allowed if verdict == "allowed" else None,
            file,
            None if line is None else line + 1,
            self.faults.texts,
            attempt.suspect_s,
            False,
            None,
            attempt.helpers,
        )

    def _forget(self) -> None:
        self.faults.take()
        self.attempt = None

    def guard(self, stage: Stage, nodeid: str | None = None, code: CodeType | None = None) -> Guard:
        """See `engine.stages.Safeguards`."""
        return self.faults.guard(stage, self.nodeid if nodeid is None else nodeid, code)

    def tell(self, line: str) -> None:
        """Add a line on what could not be done to the end of the run, once."""
        if line not in self.lines:
            self.lines.append(line)


def outcome_of(report: pytest.TestReport) -> Outcome:
    """Return a phase's outcome in the words of the report."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed" if report.passed else "failed"
    if report.outcome == "passed":
        return "passed"
    if report.skipped:
        return "skipped"
    return "failed" if report.when == "call" else "error"
