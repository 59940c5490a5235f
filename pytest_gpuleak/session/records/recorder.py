"""Take each test's record, with its teardown's report, into records and journal; a missing one is `unchecked`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.model.outcomes import TestRecord, decode_test
from pytest_gpuleak.model.policy import describe
from pytest_gpuleak.session.item_hooks import QUIET_VERDICTS
from pytest_gpuleak.session.pytest_internals import colour_red
from pytest_gpuleak.session.records.run_records import environment, now
from pytest_gpuleak.session.report_record import AGAIN_ATTRIBUTE, HUNG_ATTRIBUTE, RECORD_ATTRIBUTE, encode_safely

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import FixtureRecord
    from pytest_gpuleak.model.outcomes import Outcome, Verdict
    from pytest_gpuleak.model.policy import Settings
    from pytest_gpuleak.reports.json.journal import Journal
    from pytest_gpuleak.session.leak_check import LeakCheck
    from pytest_gpuleak.session.records.run_records import RunProgress, RunRecords

FIXTURES_ATTRIBUTE = "gpu_leak_fixtures"
"""Attribute of a report with a worker's findings on fixtures so far, in case the worker dies."""

_PHASES = ("setup", "call", "teardown")

_COUNTED = ("passed", "failed", "skipped")
"""Outcomes that pytest counts as a test's. Plugins that run a test again have one of their own (``rerun``)."""


class Recorder:
    """Take the records where they arrive: in the one process of a run, or in the controller of xdist's workers."""

    def __init__(self, settings: Settings, ledger: RunRecords, check: LeakCheck, completeness: RunProgress) -> None:
        self._settings = settings
        self._ledger = ledger
        self._check = check
        self._completeness = completeness
        self._journal: Journal | None = None
        self._status: LeakedStatus | None = None
        self._of_workers: dict[str, list[dict[str, Any]]] = {}
        self._written: tuple[list[FixtureRecord], list[dict[str, Any]]] = ([], [])
        self._without_record: dict[str, pytest.TestReport] = {}
        # By their worker too: with xdist's `--dist=each`, several run a test at a time.
        self._counted: set[tuple[str, str | None]] = set()  # running tests of which pytest has counted a report
        # Those that an attempt which is not counted has findings of.
        self._found_before: set[tuple[str, str | None]] = set()
        self._hung: set[str] = set()  # tests whose worker ended itself after it sent their records

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the record that came with a teardown's report."""
        found: TestRecord | dict[str, Any] | None = getattr(report, RECORD_ATTRIBUTE, None)
        if found is None:
            self._note_phase(report)
            return
        if hasattr(report, HUNG_ATTRIBUTE):
            self._hung.add(report.nodeid)
        self._of_workers.update(getattr(report, FIXTURES_ATTRIBUTE, {}))
        record = found if isinstance(found, TestRecord) else self._decoded(found, report)
        if record is None:
            return
        if record.verdict == "leaked" and self._status is None and not self._settings.warn:
            self._status = LeakedStatus()
            self._check.config.pluginmanager.register(self._status, "gpuleak-status")
            colour_red(self._check.config)
        if record.verdict in QUIET_VERDICTS or self._settings.warn:
            delattr(report, RECORD_ATTRIBUTE)  # pytest keeps every report until the session ends
        elif hasattr(report, AGAIN_ATTRIBUTE):
            self._ledger.forget_leaked(record)
        if self._is_counted_elsewhere(record, report):
            record = record._replace(rerun=True)
        self._take(record)

    def _note_phase(self, report: pytest.TestReport) -> None:
        nodeid, passed = report.nodeid, report.outcome == "passed"  # pytest writes the nodeid each time
        self._without_record[nodeid] = report
        if report.when == "call" or not passed:
            (self._counted.add if report.outcome in _COUNTED else self._counted.discard)((nodeid, _worker_of(report)))
        if not passed or hasattr(report, "wasxfail"):
            self._note_outcome(report)

    def _decoded(self, found: dict[str, Any], report: pytest.TestReport) -> TestRecord | None:
        """Return a worker's record; None where it cannot be read, and the test is noted as unchecked."""
        try:
            return decode_test(found)
        except Exception as error:  # noqa: BLE001 - one record that cannot be read is no reason to end the run
            from pytest_gpuleak.model.isolation import describe_error

            why = f"the record of its worker could not be read: {describe_error(error)}"
            outcome = self._completeness.outcome_of_running(report.nodeid)
            self._take_unchecked(report, why, _worker_of(report) or self._check.attempts.worker, outcome)
            delattr(report, RECORD_ATTRIBUTE)
            return None

    def _is_counted_elsewhere(self, record: TestRecord, teardown: pytest.TestReport) -> bool:
        """Tell whether another attempt of the test is the one to count: pytest has counted no phase of this one."""
        running, quiet = (record.nodeid, _worker_of(teardown)), record.verdict in ("clean", "unchecked")
        counted = running in self._counted or (quiet and teardown.outcome != "passed")
        self._counted.discard(running)
        if not counted or teardown.outcome not in _COUNTED:
            if not quiet:
                self._found_before.add(running)
            return quiet
        if running not in self._found_before:
            return False
        self._found_before.discard(running)
        return record.verdict != "leaked"

    def _note_outcome(self, report: pytest.TestReport) -> None:
        self._completeness.note_report(report)
        if report.failed:
            self._check.attempts.note_failure(report.nodeid)
            if report.when not in _PHASES and report.nodeid not in self._hung:
                # The report that xdist, pytest-forked and others create for a test whose process died.
                worker = _worker_of(report)
                who = "its process" if worker is None else f"the worker {worker}"
                name = self._check.attempts.worker if worker is None else worker
                self._take_unchecked(report, f"{who} died while running it", name, "failed")

    def take_worker(self, worker: str, records: list[dict[str, Any]]) -> None:
        """Take an ended worker's findings on fixtures. For a worker that died, those sent before count."""
        self._of_workers.pop(worker, None)
        if not records:
            return
        from pytest_gpuleak.model.records import decode_fixture

        self._ledger.fixtures += map(decode_fixture, records)

    def take_explained(self, worker: str, encoded: list[tuple[str, Verdict, list[dict[str, Any]], float]]) -> None:
        """Take an ended worker's findings whose holders it has searched for after their tests were reported."""
        from pytest_gpuleak.model.finding_codec import decode_finding

        explained = [
            (nodeid, verdict, tuple(map(decode_finding, found)), search_s)
            for nodeid, verdict, found, search_s in encoded
        ]
        self._ledger.take_explained(explained, worker)

    def finish(self, *, stopped: bool) -> None:
        """Complete the records: workers that died, tests without a record. `stopped`: the session ended early."""
        why = "no report of its teardown brought a verdict: a plugin runs it in a way of its own"
        # Some plugins add a report to a test that has ended.
        known = self._ledger.nodeids() if self._without_record else set()
        for report in list(self._without_record.values()):
            if report.nodeid not in known and (report.when == "teardown" or not stopped):
                outcome = self._completeness.outcome_of_running(report.nodeid)
                self._take_unchecked(report, why, self._check.attempts.worker, outcome)
        for worker in list(self._of_workers):
            self.take_worker(worker, self._of_workers[worker])

    def close_journal(self) -> str | None:
        """Close the journal, so that the reports can be written over it. Returns its fault as one line, or None."""
        if self._journal is None:
            return None
        self._journal.close()
        return self._journal.fault

    def remove_journal(self) -> None:
        """Remove a journal that no report was written over."""
        if self._journal is not None and self._journal.path not in self._settings.report_paths:
            self._journal.remove()

    def note_started(self, nodeid: str) -> None:
        """Record in the journal that a test starts. The first test replaces an older report by the journal."""
        self._completeness.note_started(nodeid)
        if self._journal is None:
            from pytest_gpuleak.reports.json.journal import Journal, journal_path

            self._journal = journal = Journal(journal_path(self._settings.report_paths))
            policy = {**describe(self._settings), "strategy": self._check.mode}
            journal.begin({"created": now(), "environment": environment(), "policy": policy})
            self._check.attempts.note_rerun = lambda record: journal.note_rerun(encode_safely(record))
        self._journal.note_running(self._completeness.running)

    def _take(self, record: TestRecord) -> None:
        self._without_record.pop(record.nodeid, None)
        self._ledger.tests.append(record)
        self._completeness.note_ended(record.nodeid)
        if self._journal is None:
            return
        known = [*self._ledger.fixtures, *self._check.fixture_records]
        of_workers = [fixture for those in self._of_workers.values() for fixture in those]
        # Compare before encoding, which takes 15 ms for hundreds of fixtures.
        if (known, of_workers) != self._written:
            self._written = known, of_workers
            self._journal.set_fixtures([*map(encode_safely, known), *of_workers])
        running = self._completeness.running or self._check.attempts.upcoming
        self._journal.add_test(encode_safely(record), running)

    def _take_unchecked(self, report: pytest.TestReport, why: str, worker: str, outcome: Outcome) -> None:
        file, line, _ = report.location
        record = TestRecord(report.nodeid, "unchecked", why, outcome, worker, 0.0, 0.0)
        self._take(record._replace(file=file, line=None if line is None else line + 1))


class JournalHooks:
    """Tell the journal which tests are running. Registered where reports are written."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record that a test starts."""
        self._recorder.note_started(nodeid)


class LeakedStatus:
    """Return a leaking test's letter. Registered with the first leak: its three calls a test cost a clean test 5 %."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """Return the letter L, for a test that failed by a leak alone."""
        record = getattr(report, RECORD_ATTRIBUTE, None)
        if record is not None and report.failed and record["verdict"] == "leaked":
            return "leaked", "L", ("LEAKED", {"red": True})
        return None


class Sender:
    """Send what an xdist worker knows of its fixtures to the controller, with the next test's report."""

    def __init__(self, check: LeakCheck) -> None:
        self._check = check
        self._sent: list[FixtureRecord] = []

    @pytest.hookimpl(tryfirst=True)  # before xdist sends the report
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Attach the findings where they changed."""
        if hasattr(report, RECORD_ATTRIBUTE):
            known = self._check.fixture_records
            if known != self._sent:
                self._sent = known
                setattr(
                    report,
                    FIXTURES_ATTRIBUTE,
                    {self._check.attempts.worker: [encode_safely(record) for record in known]},
                )
        elif report.failed:
            self._check.attempts.note_failure(report.nodeid)


def _worker_of(report: pytest.TestReport) -> str | None:
    gateway = getattr(getattr(report, "node", None), "gateway", None)
    return None if gateway is None else str(gateway.id)
