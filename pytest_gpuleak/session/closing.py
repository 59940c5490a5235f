"""End a run: judge what is left, write reports, inform the CI service, set the exit status."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_gpuleak.session.pytest_internals import runs_nothing
from pytest_gpuleak.session.records.run_records import DESELECTED_KEY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpuleak.model.findings import Finding, FixtureRecord
    from pytest_gpuleak.model.outcomes import Verdict
    from pytest_gpuleak.model.records import RunReport
    from pytest_gpuleak.session.features.clean_up_calls import CleanUpCalls
    from pytest_gpuleak.session.features.first_init_watch import InitWatch
    from pytest_gpuleak.session.leak_check import LeakCheck
    from pytest_gpuleak.session.records.recorder import Recorder
    from pytest_gpuleak.session.records.run_records import RunProgress, RunRecords
    from pytest_gpuleak.session.surroundings import Surroundings

_T = TypeVar("_T")
_Other = TypeVar("_Other")

WORKER_KEY = "gpu_leak"
"""Key of what a worker tells of its run, in xdist's ``workeroutput``."""


@dataclasses.dataclass
class Run:
    """The parts of a run that its end uses.

    `faults` are lines on steps of the end of the run that failed, and `errors` on reports that could not be written.
    `published` are lines for the CI service to read, if `surroundings` is any.
    `skips_interrupted` tells that the next Ctrl-C skips the step that it meets: once, at the end of the run.
    """

    check: LeakCheck
    ledger: RunRecords
    recorder: Recorder
    completeness: RunProgress
    surroundings: Surroundings | None
    init_watch: InitWatch
    clean_up: CleanUpCalls
    faults: list[str] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)
    published: list[str] = dataclasses.field(default_factory=list)
    skips_interrupted: bool = False

    @property
    def fails_by_init(self) -> bool:
        """Tell whether `--gpu-leak-no-init-at-collection` fails the run."""
        found = self.ledger.facts.first_init
        return self.check.settings.no_init_at_collection and found is not None and found.before_tests

    def attempt(self, what: str, part: Callable[[], _T], otherwise: _Other) -> _T | _Other:
        """Run a step (`what`) of the end of the run; if it fails, note a line and return the substitute."""

        def note(why: str) -> _T | _Other:
            self.faults.append(f"{what} failed: {why}")
            return otherwise

        return self.isolated(part, note)

    def lines(self, what: str, write: Callable[[], list[str]]) -> list[str]:
        """Return the lines of such a step; none if it fails."""
        none: list[str] = []
        return self.attempt(what, write, none)

    def look_for_devices(self, look: Callable[[], None]) -> None:
        """Look for who has initialised a device, at the end of a phase."""
        self.attempt("looking for who has initialised a device", look, None)

    def isolated(self, part: Callable[[], _T], instead: Callable[[str], _T]) -> _T:
        """Return what `part` returns. For an Exception or the first Ctrl-C, return what `instead` makes of its line.

        pytest guards none of its hooks at the end: the user would see a traceback of the plugin's and no summary. After
        a Ctrl-C pytest exits as interrupted. A second one is raised, and so is one before the end of the run.
        """
        from pytest_gpuleak.model.isolation import isolated

        try:
            return isolated(part, instead)
        except KeyboardInterrupt:
            if not self.skips_interrupted:
                raise
            self.skips_interrupted = False
            session = self.check.config.pluginmanager.get_plugin("session")
            if session is not None:
                session.exitstatus = pytest.ExitCode.INTERRUPTED
            return instead("interrupted by Ctrl-C")


def close_run(run: Run, session: pytest.Session, exitstatus: int) -> None:
    """Judge, write and set the exit status. An error costs its step alone: pytest would end without its summary."""
    run.skips_interrupted = True
    run.attempt("judging what was left at the end", run.check.finish, None)
    records: list[FixtureRecord] = run.attempt("listing what the fixtures left", lambda: run.check.fixture_records, [])
    run.look_for_devices(run.init_watch.look)
    _note_facts(run)
    output: dict[str, Any] | None = getattr(run.check.config, "workeroutput", None)
    if output is not None:
        _send(run, records, output)
        return
    stopped = bool(session.shouldstop or session.shouldfail or exitstatus >= pytest.ExitCode.INTERRUPTED)
    run.attempt("recording the last tests", lambda: run.recorder.finish(stopped=stopped), None)
    run.ledger.fixtures += records
    run.attempt(
        "recording who holds what was left",
        lambda: run.ledger.take_explained(run.check.late.explained, run.check.attempts.worker),
        None,
    )
    run.ledger.add_faults(run.check.faults_of_session)
    if run.ledger.detailed:
        run.ledger.deselected = run.completeness.deselected
        run.ledger.incomplete = run.attempt(
            "telling whether the run is complete",
            lambda: run.completeness.why_incomplete(session, run.ledger.tests),
            "whether tests are missing could not be told",
        )
    if exitstatus != pytest.ExitCode.USAGE_ERROR and not runs_nothing(run.check.config):
        _judge_by_baseline(run, session)
        if run.check.settings.report_paths or run.surroundings is not None:
            plain = run.ledger.report(run.check.settings, run.check.mode, on_file=True)
            report = run.attempt("finding the repository", lambda: _locate(run, plain), plain)
            run.attempt("writing the reports", lambda: _write_reports(run, report), None)
            run.attempt("publishing", lambda: _publish(run, report), None)
    fails = not run.check.settings.warn and (
        run.ledger.fixture_leaked
        or run.errors
        or (run.check.baseline is not None and run.check.baseline.failed)
        or (run.check.settings.strict and run.ledger.failed_to_check)
        or run.fails_by_init
    )
    if fails and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _note_facts(run: Run) -> None:
    """Note what this process tells beside its records."""
    facts = run.ledger.facts
    if run.init_watch.found is not None:
        facts.note_first_init(run.init_watch.found._replace(worker=run.check.attempts.worker))
    facts.add_run(*run.clean_up.sums())
    if run.check.lost_device is not None:
        facts.lost_devices.append(run.check.lost_device._asdict())
    facts.helpers += run.attempt("adding up the memory of helper processes", run.check.helpers.memory, [])


def _send(run: Run, records: list[FixtureRecord], output: dict[str, Any]) -> None:
    from pytest_gpuleak.session.report_record import encode_safely

    output[DESELECTED_KEY] = run.completeness.deselected
    output[WORKER_KEY] = {
        "fixtures": run.attempt("sending what the fixtures left", lambda: [*map(encode_safely, records)], []),
        "explained": run.attempt("sending who holds what was left", lambda: _encode(run.check.late.explained), []),
        "facts": run.ledger.facts.encode(whole=True),
        "lines": run.check.attempts.lines + run.faults,
        "faults": run.check.faults_of_session,
    }


def _encode(explained: list[tuple[str, Verdict, tuple[Finding, ...], float]]) -> list[tuple[Any, ...]]:
    if not explained:
        return []
    from pytest_gpuleak.model.finding_codec import encode_finding

    return [
        (nodeid, verdict, [*map(encode_finding, found)], search_s) for nodeid, verdict, found, search_s in explained
    ]


def _locate(run: Run, report: RunReport) -> RunReport:
    from pytest_gpuleak.session.publishing import locate

    return locate(report, run.check.config.rootpath, run.surroundings)


def _publish(run: Run, report: RunReport) -> None:
    if run.surroundings is None:
        return
    from pytest_gpuleak.session.publishing import print_lines, publish

    run.published = publish(report, run.check.config.rootpath, run.surroundings)
    if run.published and not run.check.config.pluginmanager.hasplugin("terminalreporter"):
        print_lines(run.published)


def _judge_by_baseline(run: Run, session: pytest.Session) -> None:
    baseline = run.check.baseline
    if baseline is None:
        return

    def judge() -> None:
        report = run.ledger.report(run.check.settings, run.check.mode, on_file=False)
        report, error = baseline.finish(report, session)
        run.ledger.take_over(report)
        if error:  # an update that was refused fails the run, and its tests passed as accepted, not as known
            run.errors.append(error)
            return
        baseline.note_late(
            one.nodeid for one in report.tests if one.verdict == "leaked" and one.nodeid in run.ledger.passed_so_far
        )

    run.isolated(judge, lambda why: run.errors.append(f"gpu-leak: the run could not be held to the baseline: {why}"))


def _write_reports(run: Run, report: RunReport) -> None:
    if not run.check.settings.report_paths:
        return
    fault = run.recorder.close_journal()
    if fault is not None:
        run.faults.append(fault)
    before = len(run.errors)
    for path in run.check.settings.report_paths:
        _write_report(run, report, path)
    if len(run.errors) == before:
        run.recorder.remove_journal()
    if run.errors and not run.check.config.pluginmanager.hasplugin("terminalreporter"):
        print("\n".join(run.errors), file=sys.stderr)  # noqa: T201 - without a terminal reporter


def _write_report(run: Run, report: RunReport, path: Path) -> None:
    from pytest_gpuleak.reports.formats import write_report

    def note(why: str) -> None:
        run.errors.append(f"gpu-leak: the report {path} could not be written: {why}")

    def write() -> None:
        try:
            write_report(report, path)
        except OSError as error:
            if error.strerror is None:
                raise
            note(error.strerror)

    run.isolated(write, note)
