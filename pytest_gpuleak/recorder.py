"""Takes the tests' records as they end: into the ledger, and into the journal. Nothing that was found gets lost.

A record comes with the report of a test's teardown, from this process or from one of xdist's workers. A test that
brings none has one made for it: its process died, or a plugin runs it where this one does not see it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.ledger import environment, now
from pytest_gpuleak.policy import describe
from pytest_gpuleak.records import TestRecord, decode_fixture, decode_test, encode
from pytest_gpuleak.runtest import RECORD_ATTRIBUTE

if TYPE_CHECKING:
    from pytest_gpuleak.completeness import Completeness
    from pytest_gpuleak.findings import FixtureRecord
    from pytest_gpuleak.journal import Journal
    from pytest_gpuleak.ledger import Ledger
    from pytest_gpuleak.monitor import Monitor
    from pytest_gpuleak.policy import Settings
    from pytest_gpuleak.records import Outcome

FIXTURES_ATTRIBUTE = "gpu_leak_fixtures"
"""The attribute of a report that carries a worker's findings on fixtures so far: should it die, these are known."""

_PHASES = ("setup", "call", "teardown")
_Location = tuple[str, "int | None", str]


class Recorder:
    """Takes the records, where they arrive: in the one process of a run, or in the controller of xdist's workers.

    Args:
        settings: what the run was asked for.
        ledger: the session's account.
        monitor: watches this process.
        completeness: follows which tests run.
    """

    def __init__(self, settings: Settings, ledger: Ledger, monitor: Monitor, completeness: Completeness) -> None:
        self._settings = settings
        self._ledger = ledger
        self._monitor = monitor
        self._completeness = completeness
        self._journal: Journal | None = None
        self._status: LeakedStatus | None = None
        self._of_workers: dict[str, list[dict[str, Any]]] = {}
        self._written: list[dict[str, Any]] = []

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test starts. With the first one, an older report gives way to the journal of this run."""
        self._completeness.note_started(nodeid)
        if not self._settings.report_paths:
            return
        if self._journal is None:
            from pytest_gpuleak.journal import Journal, journal_path

            path = journal_path(self._settings.report_paths)
            self._journal = Journal(path)
            policy = {**describe(self._settings), "strategy": self._monitor.mode}
            self._journal.begin({"created": now(), "environment": environment(), "policy": policy})
        self._journal.note_running(self._completeness.running)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the record that came with a teardown's report."""
        record = getattr(report, RECORD_ATTRIBUTE, None)
        if record is not None:
            self._of_workers.update(getattr(report, FIXTURES_ATTRIBUTE, {}))
            self._take(self._monitor.record_of(record) or decode_test(record), record)
            if record["verdict"] == "leaked" and self._status is None:
                self._status = LeakedStatus()
                self._monitor.config.pluginmanager.register(self._status, "gpuleak-status")
            elif record["verdict"] == "clean":
                delattr(report, RECORD_ATTRIBUTE)  # pytest keeps every report until the session ends
            return
        self._completeness.note_report(report)
        if report.failed:
            self._monitor.note_failure(report.nodeid)
            if report.when not in _PHASES:
                # What xdist, pytest-forked and others make up for a test whose process died.
                worker = _worker_of(report)
                who = "its process" if worker is None else f"the worker {worker}"
                name = self._monitor.worker if worker is None else worker
                self._take_unchecked(report.nodeid, report.location, f"{who} died while running it", name, "failed")

    def pytest_runtest_logfinish(self, nodeid: str, location: _Location) -> None:
        """A test has ended: one that brought no record is not lost."""
        if not self._completeness.note_finished(nodeid):
            outcome = self._completeness.outcome_of_running(nodeid)
            why = "no report of its teardown brought a verdict: a plugin runs it in a way of its own"
            self._take_unchecked(nodeid, location, why, self._monitor.worker, outcome)

    def take_worker(self, worker: str, records: list[dict[str, Any]]) -> None:
        """A worker has ended: these are its findings on fixtures. One that died sends none, and what is known stands."""
        self._of_workers.pop(worker, None)
        for record in records:
            self._ledger.add_fixture(decode_fixture(record))

    def finish(self) -> None:
        """The session is over: take what is known of the fixtures of workers that died."""
        for worker in list(self._of_workers):
            self.take_worker(worker, self._of_workers[worker])

    def close_journal(self) -> str | None:
        """Let the reports be written over the journal. Returns what was wrong with it, as one line, or None."""
        if self._journal is None:
            return None
        self._journal.close()
        return self._journal.fault

    def remove_journal(self) -> None:
        """Remove the journal where no report has been written over it. The reports have been written."""
        if self._journal is not None and self._journal.path not in self._settings.report_paths:
            self._journal.remove()

    def _take(self, record: TestRecord, encoded: dict[str, Any]) -> None:
        self._ledger.add_test(record)
        self._completeness.note_ended(record.nodeid, record.worker)
        if self._journal is None:
            return
        known = [*self._ledger.fixtures, *self._monitor.fixture_records]
        if known or self._of_workers:
            fixtures = [encode(fixture) for fixture in known]
            fixtures += [fixture for those in self._of_workers.values() for fixture in those]
            if fixtures != self._written:
                self._written = fixtures
                self._journal.set_fixtures(fixtures)
        self._journal.add_test(encoded, self._completeness.running)

    def _take_unchecked(self, nodeid: str, location: _Location, why: str, worker: str, outcome: Outcome) -> None:
        file, line, _ = location
        record = TestRecord(
            nodeid=nodeid,
            verdict="unchecked",
            why_unchecked=why,
            outcome=outcome,
            worker=worker,
            duration_s=0.0,
            overhead_s=0.0,
            file=file,
            line=None if line is None else line + 1,
        )
        self._take(record, encode(record))


class LeakedStatus:
    """Says what a leaking test's letter is. Registered with the first one: three calls of a hook a test are spared."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """The letter L, for a test that failed by a leak alone."""
        record = getattr(report, RECORD_ATTRIBUTE, None)
        if record is not None and report.failed and record["verdict"] == "leaked":
            return "leaked", "L", ("LEAKED", {"red": True})
        return None


class Sender:
    """Sends what an xdist worker knows of its fixtures to the controller, with the next test's report.

    Args:
        monitor: watches this process.
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._sent: list[FixtureRecord] = []

    @pytest.hookimpl(tryfirst=True)  # before xdist sends the report
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Let the findings travel where they have changed."""
        if hasattr(report, RECORD_ATTRIBUTE):
            known = self._monitor.fixture_records
            if known != self._sent:
                self._sent = known
                setattr(report, FIXTURES_ATTRIBUTE, {self._monitor.worker: [encode(record) for record in known]})
        elif report.failed:
            self._monitor.note_failure(report.nodeid)


def _worker_of(report: pytest.TestReport) -> str | None:
    """The xdist worker that a report came from."""
    gateway = getattr(getattr(report, "node", None), "gateway", None)
    return None if gateway is None else str(gateway.id)
