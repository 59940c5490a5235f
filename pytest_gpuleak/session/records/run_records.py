"""The records of a run, test by test, of this process or of its xdist workers."""

from __future__ import annotations

import datetime
import platform
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.registry import own_frameworks
from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.policy import Settings, describe
from pytest_gpuleak.model.records import RunReport
from pytest_gpuleak.model.summary import ProcessFacts, count_known, describe_usage, find_dearest, summarise

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpuleak.model.findings import Finding, FixtureRecord, KnownLeak
    from pytest_gpuleak.model.outcomes import TestRecord, Verdict


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
