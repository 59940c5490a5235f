"""The records of a run, test by test, of this process or of its xdist workers, and whether they are complete."""

from __future__ import annotations

import datetime
import platform
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.registry import own_frameworks
from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.policy import Settings, describe
from pytest_gpuleak.model.records import RunReport
from pytest_gpuleak.model.summary import ProcessFacts, count_known, describe_usage, find_dearest, summarise
from pytest_gpuleak.model.text import clean_text, count_of
from pytest_gpuleak.session.attempt import outcome_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuleak.model.findings import Finding, FixtureRecord, KnownLeak
    from pytest_gpuleak.model.outcomes import Outcome, TestRecord, Verdict


class RunRecords:
    """Collect records. Unless `detailed`, nothing reads the counters, peaks and helpers of clean tests."""

    def __init__(self, *, detailed: bool = True) -> None:
        self.tests: list[TestRecord] = []
        self.detailed = detailed
        self.fixtures: list[FixtureRecord] = []
        self.incomplete: str | None = None
        """Why tests are missing; None: none is."""
        self.deselected = 0
        """Tests that were collected and do not run."""
        self.stale: tuple[KnownLeak, ...] = ()
        """Entries of the baseline whose leak is gone."""
        self.passed_so_far: set[str] = set()
        """Tests that were reported as passed and leak by what a late search has told."""
        self.facts = ProcessFacts(run_s=0.0)
        """What is told of this process, or of its workers, beside their records."""
        self.faults: list[str] = []
        """Failures of the check itself, or of a user's hook, outside of tests, each once."""

    def forget_leaked(self, later: TestRecord) -> None:
        """Forget the last leak of the same test in the same process: another attempt left it again."""
        for index in range(len(self.tests) - 1, -1, -1):
            record = self.tests[index]
            if (record.nodeid, record.worker, record.verdict) == (later.nodeid, later.worker, "leaked"):
                del self.tests[index]
                return

    def take_explained(self, explained: Iterable[tuple[str, Verdict, tuple[Finding, ...], float]], worker: str) -> None:
        """Replace findings of a process that waited for their holders; of a test's attempts, in their order.

        Those of helper processes have not waited, and budgets are measured after the check.
        """
        waiting: dict[str, list[int]] = {}
        for index, record in enumerate(self.tests):
            if record.worker == worker and any(found.waits for found in record.findings):
                waiting.setdefault(record.nodeid, []).append(index)
        for nodeid, verdict, findings, search_s in explained:
            if waiting.get(nodeid):
                index = waiting[nodeid].pop(0)
                record = self.tests[index]
                spent = {part: record.suspect_s.get(part, 0.0) + search_s for part in ("check", "search")}
                suspect_s = {**record.suspect_s, **spent}
                if verdict == "leaked" and record.verdict != "leaked":
                    self.passed_so_far.add(nodeid)
                others = tuple(
                    found for found in record.findings if found.kind == "budget" or found.process is not None
                )
                all_told = record.verdict if any(found.failed for found in others) else verdict
                self.tests[index] = record._replace(verdict=all_told, findings=findings + others, suspect_s=suspect_s)

    def nodeids(self) -> set[str]:
        """Return the tests that have ended."""
        return {record.nodeid for record in self.tests}

    def add_faults(self, faults: Iterable[str]) -> None:
        """Add failures of the check, or of a user's hook, outside of tests."""
        self.faults += [fault for fault in dict.fromkeys(faults) if fault not in self.faults]

    @property
    def failed_to_check(self) -> bool:
        """Tell whether the check itself, or a user's hook, failed anywhere in the run."""
        return bool(self.faults) or any(record.faults for record in self.tests)

    @property
    def fixture_leaked(self) -> bool:
        """Tell whether a fixture's finding fails the run."""
        return any(found.failed for record in self.fixtures for found in record.findings)

    def take_over(self, report: RunReport) -> None:
        """Take over the records and stale entries of a report that a baseline has judged."""
        self.tests, self.fixtures, self.stale = list(report.tests), list(report.fixtures), report.stale

    def report(self, settings: Settings, mode: str, *, on_file: bool) -> RunReport:
        """Return the whole run. `on_file`: it is kept, so the environment is read too, which takes milliseconds."""
        return RunReport(
            created=now() if on_file else "",
            environment=environment() if on_file else {},
            policy=isolated(
                lambda: {**describe(settings), "strategy": mode}, lambda why: {"strategy": f"unknown ({why})"}
            ),
            summary=self.summary(settings, on_file=on_file),
            tests=tuple(self.tests),
            fixtures=tuple(self.fixtures),
            stale=self.stale,
            incomplete=self.incomplete,
            faults=tuple(self.faults),
        )

    def summary(self, settings: Settings, *, on_file: bool) -> dict[str, Any]:
        """Return the summary of the run's report, with as many of the heaviest tests as the settings ask for."""
        top, counts = settings.top, summarise(self.tests, self.fixtures)
        return {
            **counts,
            **self.facts.encode(),
            **({"would_fail": counts["leaked"]} if settings.warn else {}),
            "known": count_known(self.tests, self.fixtures),
            "stale": len(self.stale),
            "deselected": self.deselected,
            "memory": isolated(lambda: describe_usage(self.tests, top), lambda _: {}) if on_file or top else {},
            "dearest": find_dearest(self.tests, top),
        }

    @property
    def found(self) -> bool:
        """Tell whether there is any finding."""
        return any(one.findings for records in (self.tests, self.fixtures) for one in records)


def now() -> str:
    """Return the time, as ISO 8601 with its offset."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def environment() -> dict[str, Any]:
    """Return versions and devices of this process. Imports no framework."""
    frameworks = own_frameworks().members
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "pytest": pytest.__version__,
        **{one.name: isolated(one.version, lambda why: f"unknown ({why})") for one in frameworks},
        # After a fault on the device, such as an assertion in a kernel, every question to it raises.
        "devices": [
            name for one in frameworks for name in isolated(one.device_names, lambda why: [f"unknown ({why})"])
        ],
    }


DESELECTED_KEY = "gpu_leak_deselected"
"""Key of the number of tests that a worker deselected, in xdist's ``workeroutput``."""

_REASON_LIMIT = 300
_GRAVITY: tuple[Outcome, ...] = ("passed", "xpassed", "xfailed", "skipped", "error", "failed")


class RunProgress:
    """Follow which tests are to run, run and have ended."""

    def __init__(self) -> None:
        self.deselected = 0
        """Tests that were collected and deselected; of workers, which collect the same tests, the highest number."""
        self._expected: dict[str, None] = {}
        self._copies = 1
        self._running: dict[str, int] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._uncollected = 0
        self._stopped = ""
        self._lost_workers: list[str] = []

    @property
    def running(self) -> tuple[str, ...]:
        """Return the tests that have started and not ended, by nodeid."""
        return tuple(self._running)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file or class that could not be collected: its tests are missing."""
        self._uncollected += report.failed

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count tests that do not run in this process."""
        self.deselected += len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record the tests that will run."""
        self._expected = dict.fromkeys(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: Sequence[object]) -> None:
        """Note that with ``--dist=each`` every worker runs every test."""
        self._copies = len(specs) if config.getoption("dist", "no") == "each" else 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        """Record the tests that a worker will run."""
        self._expected.update(dict.fromkeys(ids))

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Record that a worker has ended or died."""
        output = getattr(node, "workeroutput", None) or {}
        self.deselected = max(self.deselected, output.get(DESELECTED_KEY, 0))
        if error:
            self._lost_workers.append(f"the worker {node.gateway.id} died: {error}")

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Record that the user, a plugin or `pytest.exit` ended the run."""
        error = excinfo.value
        if isinstance(error, pytest.exit.Exception):
            self._stopped = self._stopped or f"pytest.exit: {error.msg}"
        else:  # also `Session.Interrupted`, which has a text
            self._stopped = self._stopped or str(error) or "interrupted (KeyboardInterrupt)"

    def pytest_internalerror(self, excrepr: object) -> None:
        """Record that pytest or a plugin failed."""
        if not self._stopped:
            lines = [line.strip() for line in str(excrepr).splitlines() if line.strip()]
            self._stopped = f"internal error: {lines[-1] if lines else 'unknown'}"

    def note_started(self, nodeid: str) -> None:
        """Record that a test starts."""
        self._running[nodeid] = self._running.get(nodeid, 0) + 1

    def note_report(self, report: pytest.TestReport) -> None:
        """Record a running test's report, for the outcome of a test that brings no record."""
        outcome, known = outcome_of(report), self.outcome_of_running(report.nodeid)
        if _GRAVITY.index(outcome) > _GRAVITY.index(known):
            self._outcomes[report.nodeid] = outcome

    def outcome_of_running(self, nodeid: str) -> Outcome:
        """Return the outcome of a running test, as its reports so far tell."""
        return self._outcomes.get(nodeid, "passed")

    def note_ended(self, nodeid: str) -> None:
        """Record that a test has ended. With ``--dist=each`` another worker may still run it."""
        if self._outcomes:
            self._outcomes.pop(nodeid, None)
        if self._running:
            left = self._running.pop(nodeid, 0) - 1
            if left > 0:
                self._running[nodeid] = left

    def why_incomplete(self, session: pytest.Session, records: Iterable[TestRecord]) -> str | None:
        """Return why tests are missing from the report, as one line, or None. A dead process's test has a record."""
        ended = Counter(nodeid for nodeid, _ in {(record.nodeid, record.worker) for record in records})
        missing = sum(max(0, self._copies - ended[nodeid]) for nodeid in self._expected)
        if not (missing or self._uncollected):
            return None
        reasons = [str(session.shouldfail or self._stopped or session.shouldstop or "")]
        if self._uncollected and not reasons[0]:
            reasons.append(f"{count_of(self._uncollected, 'error')} during collection")
        reasons += self._lost_workers
        if missing:
            tests = count_of(self._copies * len(self._expected), "test")
            reasons.append(f"{missing} of {tests} did not run to the end")
        return "; ".join(clean_text(reason, _REASON_LIMIT) for reason in reasons if reason)
