"""The session's hooks: header, status letter, summary, reports, and the way from xdist's workers to the controller."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_gpuleak.adapters.nvml.driver import Driver
from pytest_gpuleak.engine.detect.counters import MemoryWatch
from pytest_gpuleak.engine.detect.epochs import EpochDetector
from pytest_gpuleak.engine.run_tracker import RunTracker
from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
from pytest_gpuleak.heap.collector import epochs_supported, installed
from pytest_gpuleak.model.policy import Policy, Settings
from pytest_gpuleak.model.text import clean_text, format_bytes
from pytest_gpuleak.reports.terminal.summary import TEXT_LIMIT, render_faults, render_summary
from pytest_gpuleak.session.attempt import AttemptLog
from pytest_gpuleak.session.config.markers import check_markers
from pytest_gpuleak.session.config.options import USAGE_ERROR_KEY, is_enabled, is_given
from pytest_gpuleak.session.frameworks import shared_frameworks
from pytest_gpuleak.session.hooks import Hooks
from pytest_gpuleak.session.item_hooks import RuntestHooks
from pytest_gpuleak.session.leak_check import LeakCheck
from pytest_gpuleak.session.peak_hooks import shared_probes, take_over_meter
from pytest_gpuleak.session.records.completeness import DESELECTED_KEY, Completeness
from pytest_gpuleak.session.records.recorder import JournalHooks, Recorder, Sender
from pytest_gpuleak.session.records.run_records import Ledger
from pytest_gpuleak.session.safeguards import RunSafeguards

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.model.findings import FixtureRecord
    from pytest_gpuleak.model.records import RunReport
    from pytest_gpuleak.session.ci import Surroundings
    from pytest_gpuleak.session.features.baseline import BaselineRun
    from pytest_gpuleak.session.ranks import Rank

_T = TypeVar("_T")
_DETECTOR: pytest.StashKey[EpochDetector] = pytest.StashKey()
FAULTS_KEY = "gpu_leak_faults"
"""Where a worker's lines on what could not be read travel in xdist's ``workeroutput``."""
CI_VARIABLES = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITLAB_CI")
"""Without any of these nothing is published."""
CHECK_FAULTS_KEY = "gpu_leak_check_faults"
"""Where a worker's faults outside of tests travel in xdist's ``workeroutput``."""
WORKER_KEY = "gpu_leak"
"""Where a worker's findings travel in xdist's ``workeroutput``."""


def watch_collector(early_config: pytest.Config) -> None:
    """Install the view of the collector, before any conftest.py is loaded."""
    try:
        mode = _read_scan(early_config)
    except (pytest.UsageError, AttributeError):
        return  # pytest_configure tells the user, in its turn
    if mode == "epoch" and epochs_supported() and not installed():
        detector = EpochDetector(shared_frameworks(early_config).arrays)
        detector.start()
        early_config.stash[_DETECTOR] = detector
        early_config.add_cleanup(detector.stop)


def _read_scan(config: pytest.Config) -> str:
    if not is_given(config, "scan"):
        return Policy().scan
    from pytest_gpuleak.session.config.settings import read_scan

    return read_scan(config)


def _watch_memory(config: pytest.Config, settings: Settings, driver: Driver, faults: list[str]) -> MemoryWatch:
    """The counters of this process. An xdist controller, which runs no test, reads none."""
    from pytest_gpuleak.adapters.host.modes import host_probes

    return MemoryWatch(
        shared_probes(config), host_probes(settings.policy.host, str(config.rootpath)), driver.read, faults
    )


def _surroundings() -> Surroundings | None:
    """Where the run takes place, if something is to be published there: what reads it is loaded in CI alone."""
    if not any(name in os.environ for name in CI_VARIABLES):
        return None
    from pytest_gpuleak.session.ci import read_surroundings

    found = read_surroundings(os.environ)
    return None if found.silent else found


def _rank() -> Rank | None:
    """Which rank of a distributed run this process is, if any."""
    if "RANK" not in os.environ:
        return None
    from pytest_gpuleak.session.ranks import rank_of

    return rank_of(os.environ)


def _open_baseline(config: pytest.Config, settings: Settings) -> BaselineRun | None:
    """The run's baseline. Raises pytest.UsageError for one that cannot be used."""
    if settings.baseline is None and not (settings.update_baseline or settings.fail_stale):
        return None
    from pytest_gpuleak.session.features.baseline import open_baseline

    return open_baseline(config, settings)


def settings_of(config: pytest.Config) -> Settings:
    """The run's settings. Raises pytest.UsageError for a value or a report path that is not accepted."""
    if not is_given(config):
        return Settings(is_enabled(config), Policy())
    from pytest_gpuleak.session.config.settings import read_settings

    return read_settings(config)


def _nothing() -> None:
    """Stand in for a step that returns nothing."""


class Session(Hooks):
    """One pytest session with the plugin switched on.

    Args:
        config: pytest's config.
        settings: what the run was asked for.
    """

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        self._rank = _rank() if worker is None else None
        if self._rank is not None:
            from pytest_gpuleak.session.ranks import path_of_rank

            settings = settings._replace(
                report_paths=tuple(path_of_rank(path, self._rank) for path in settings.report_paths)
            )
        self._config = config
        self._settings = settings
        self._is_worker = worker is not None
        name = str(worker["workerid"]) if worker is not None else self._rank.name if self._rank else "main"
        self._errors: list[str] = []
        self._surroundings = _surroundings()
        self._published: list[str] = []
        self._faults: list[str] = []
        detector = config.stash.get(_DETECTOR, None)
        faults: list[str] = []
        driver = Driver(faults)
        self._memory = _watch_memory(config, settings, driver, faults)
        self._baseline = _open_baseline(config, settings)
        # Most runs on a developer's machine have nobody who reads what a clean test's record says.
        self._detailed = bool(
            self._is_worker or settings.report_paths or settings.top or self._surroundings or self._baseline
        )
        self._ledger = Ledger(detailed=self._detailed)
        self._attempts = AttemptLog(config, settings, name, faults)
        self._safeguards = RunSafeguards(self._attempts)
        knowledge = SessionKnowledge(str(config.rootpath), self._safeguards, name, settings.snapshots)
        tracker = RunTracker(shared_frameworks(config), self._safeguards, self._memory, driver, detector)
        self._check = LeakCheck(
            config, settings, tracker, knowledge, self._attempts, self._baseline, detailed=self._detailed
        )
        config.add_cleanup(self._check.stop)
        self._completeness = Completeness()
        if self._detailed:
            config.pluginmanager.register(self._completeness, "gpuleak-completeness")
        self._recorder = Recorder(settings, self._ledger, self._check, self._completeness)
        records = Sender(self._check) if self._is_worker else self._recorder
        config.pluginmanager.register(records, "gpuleak-recorder")
        if settings.report_paths:
            config.pluginmanager.register(JournalHooks(self._recorder, self._completeness), "gpuleak-journal")

    def pytest_report_header(self) -> list[str]:
        """One line: how tests are judged."""
        policy = self._settings.policy
        growth = " or ".join(
            part
            for part in (
                "" if policy.growing_tensors is None else f"over {policy.growing_tensors} tensors",
                "" if policy.growing_bytes is None else f"over {format_bytes(policy.growing_bytes)}",
            )
            if part
        )
        return [
            (
                f"gpu-leak: {self._check.mode}; fails growth {growth}, residue from {format_bytes(policy.retained_bytes)}; "
                f"re-runs a suspect {policy.confirm} x"
            ),
            *self._describe_rank(),
        ]

    def _describe_rank(self) -> list[str]:
        paths = self._settings.report_paths
        if self._rank is None or not paths:
            return []
        names = ", ".join(clean_text(path.name, 100) for path in paths)
        return [f"gpu-leak: rank {self._rank.number} of {self._rank.total} writes reports of its own: {names}"]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Check the markers. Raises pytest.UsageError before any test runs."""
        try:
            check_markers(items, self._settings)
        except pytest.UsageError as error:
            if not self._is_worker:
                raise
            # xdist takes any exception of a worker's for a crash, and goes on; the controller tells the user.
            self._config.workeroutput[USAGE_ERROR_KEY] = str(error)  # type: ignore[attr-defined]
            raise pytest.Session.Failed("usage error") from None

    def pytest_collection_finish(self) -> None:
        """Take hold of the tests, after every conftest.py: what is registered last is called outermost."""
        if self._config.hook.pytest_gpuleak_arrays.get_hookimpls():
            from pytest_gpuleak.session.user_hooks import bring_frameworks

            for probe in bring_frameworks(self._config, self._attempts.faults, self._safeguards):
                self._memory.add_devices(probe)
        if not self._config.option.collectonly:
            self._check.start()
            self._take_hold()

    def _take_hold(self) -> None:
        manager = self._config.pluginmanager
        meter = take_over_meter(self._config, needed=self._detailed)
        manager.register(RuntestHooks(self._check, meter), "gpuleak-runtest")
        if self._settings.clean:
            from pytest_gpuleak.session.features.cleanup import CleaningHooks

            # The last, and so the outermost: a failed attempt is cleaned before the next one's counters are read.
            manager.register(
                CleaningHooks(self._config, self._memory.read, lambda: self._attempts.rerunning), "gpuleak-cleaning"
            )

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take a worker's fixture findings. Raises pytest.UsageError for a marker that a worker found bad."""
        output = getattr(node, "workeroutput", None) or {}
        if USAGE_ERROR_KEY in output:
            raise pytest.UsageError(output[USAGE_ERROR_KEY])
        if WORKER_KEY in output:  # a worker that died sends none: what is known stands
            what = f"taking over what the fixtures of the worker {node.gateway.id} left"
            self._attempt(what, lambda: self._recorder.take_worker(node.gateway.id, output[WORKER_KEY]), _nothing)
        self._ledger.add_faults(output.get(CHECK_FAULTS_KEY, ()))
        self._faults += [fault for fault in output.get(FAULTS_KEY, []) if fault not in self._faults]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """After the last fixtures are torn down: judge them, write the reports, set the exit status.

        A fault in one step costs this step: an exception from here would end pytest without its summary, and without
        the reports.
        """
        self._attempt("judging what the fixtures left", self._check.finish, _nothing)
        records: list[FixtureRecord] = self._attempt(
            "listing what the fixtures left", lambda: self._check.fixture_records, list
        )
        if self._is_worker:
            from pytest_gpuleak.session.report_record import encode_safely

            output: dict[str, Any] = self._config.workeroutput  # type: ignore[attr-defined]
            output[WORKER_KEY] = self._attempt(
                "sending what the fixtures left", lambda: [encode_safely(record) for record in records], list
            )
            output[FAULTS_KEY] = self._memory.faults + self._faults
            output[CHECK_FAULTS_KEY] = self._check.faults_of_session
            output[DESELECTED_KEY] = self._completeness.deselected
            return
        stopped = bool(session.shouldstop or session.shouldfail or exitstatus >= pytest.ExitCode.INTERRUPTED)
        self._attempt("recording the last tests", lambda: self._recorder.finish(stopped=stopped), _nothing)
        for record in records:
            self._ledger.add_fixture(record)
        self._ledger.add_faults(self._check.faults_of_session)
        if self._detailed:
            self._ledger.deselected = self._completeness.deselected
            self._ledger.incomplete = self._attempt(
                "telling whether the run is complete",
                lambda: self._completeness.why_incomplete(session, self._ledger.tests),
                lambda: "whether tests are missing could not be told",
            )
        if exitstatus != pytest.ExitCode.USAGE_ERROR and not self._config.option.collectonly:
            self._judge_by_baseline(session)
            if self._settings.report_paths or self._surroundings is not None:
                plain = self._ledger.report(self._settings, self._check.mode, on_file=True)
                report = self._attempt("finding the repository", lambda: self._locate(plain), lambda: plain)
                self._attempt("writing the reports", lambda: self._write_reports(report), _nothing)
                self._attempt("publishing", lambda: self._publish(report), _nothing)
        fails = (
            self._ledger.fixture_leaked
            or self._errors
            or (self._baseline is not None and self._baseline.failed)
            or (self._settings.strict and self._ledger.failed_to_check)
        )
        if fails and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _attempt(self, what: str, part: Callable[[], _T], otherwise: Callable[[], _T]) -> _T:
        """Run a step of the end of the run; where it fails, note a line for the summary, and return what stands in."""
        from pytest_gpuleak.model.isolation import isolated

        def note(why: str) -> _T:
            self._faults.append(f"{what} failed: {why}")
            return otherwise()

        return isolated(part, note)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The section GPU LEAKS, the summary line, and what went wrong with a report."""
        if self._config.option.collectonly:
            return
        if self._ledger.found or self._settings.top or self._baseline is not None:
            report = self._ledger.report(self._settings, self._check.mode, on_file=False)
            summary = report.summary
            self._attempt("showing the leaks", lambda: self._tell_findings(report, terminalreporter), _nothing)
        else:
            summary = self._ledger.summary(self._settings.top, on_file=False)
        last = self._attempt("counting the tests", lambda: render_summary(summary), lambda: "gpu-leak: no counts")
        for fault in dict.fromkeys([*self._memory.faults, *self._faults]):
            terminalreporter.line(f"gpu-leak: {clean_text(fault, TEXT_LIMIT)}")
        terminalreporter.line(last)
        if self._ledger.failed_to_check:
            self._tell_faults(terminalreporter)
        if self._ledger.incomplete is not None and self._settings.report_paths:
            terminalreporter.line(f"gpu-leak: THE REPORT IS INCOMPLETE: {self._ledger.incomplete}", red=True, bold=True)
        for error in self._errors:
            terminalreporter.line(error, red=True)
        for line in self._published:
            terminalreporter.line(line)

    def _tell_findings(self, report: RunReport, terminalreporter: Any) -> None:
        """Render the section GPU LEAKS."""
        verbosity, width = int(self._config.option.verbose), terminalreporter._tw.fullwidth
        lines: list[str] = self._attempt("showing the leaks", lambda: self._leak_lines(report, verbosity, width), list)
        if lines and verbosity >= 0:
            terminalreporter.section("GPU LEAKS", red=report.summary["leaked"] > 0 or self._ledger.fixture_leaked)
        if verbosity >= 0:
            lines += self._attempt("showing the heaviest tests", lambda: self._usage_lines(report, width), list)
        baseline = self._baseline
        if baseline is not None:
            lines += self._attempt("showing the baseline", lambda: baseline.render(report, verbosity=verbosity), list)
        for line in lines:
            terminalreporter.line(line)

    @staticmethod
    def _leak_lines(report: RunReport, verbosity: int, width: int) -> list[str]:
        from pytest_gpuleak.reports.terminal.section import render_leaks

        return render_leaks(report, verbosity=verbosity, width=width)

    @staticmethod
    def _usage_lines(report: RunReport, width: int) -> list[str]:
        from pytest_gpuleak.reports.terminal.summary import render_usage

        return render_usage(report, width=width)

    def _locate(self, report: RunReport) -> RunReport:
        from pytest_gpuleak.session.ci import locate

        return locate(report, self._config.rootpath, self._surroundings)

    def _tell_faults(self, terminalreporter: Any) -> None:
        strict = self._settings.strict
        line = render_faults(self._ledger.tests, self._ledger.faults)
        if line is not None:
            colour = {"red": True} if strict else {"yellow": True}
            terminalreporter.line(f"{line}{'; the run fails (--gpu-leak-strict)' if strict else ''}", **colour)

    def _publish(self, report: RunReport) -> None:
        """Tell the CI service that this run takes place in, if any; what it reads from the output is printed last."""
        if self._surroundings is None:
            return
        from pytest_gpuleak.session.ci import print_lines, publish

        self._published = publish(report, self._config.rootpath, self._surroundings)
        if self._published and not self._config.pluginmanager.hasplugin("terminalreporter"):
            print_lines(self._published)

    def _judge_by_baseline(self, session: pytest.Session) -> None:
        baseline = self._baseline
        if baseline is not None:
            from pytest_gpuleak.model.isolation import isolated

            isolated(
                lambda: self._take_over_baseline(baseline, session),
                lambda why: self._errors.append(f"gpu-leak: the run could not be held to the baseline: {why}"),
            )

    def _take_over_baseline(self, baseline: BaselineRun, session: pytest.Session) -> None:
        report = self._ledger.report(self._settings, self._check.mode, on_file=False)
        report, error = baseline.finish(report, session)
        self._ledger.take_over(report)
        self._errors += [error] if error else []

    def _write_reports(self, report: RunReport) -> None:
        if not self._settings.report_paths:
            return
        from pytest_gpuleak.model.isolation import describe_error
        from pytest_gpuleak.reports.formats import write_report

        fault = self._recorder.close_journal()
        if fault is not None:
            self._faults.append(fault)
        before = len(self._errors)
        for path in self._settings.report_paths:
            try:
                write_report(report, path)
            except Exception as error:  # noqa: BLE001 - a fault of a report's is no reason to end a run whose tests are done
                why = getattr(error, "strerror", None) or describe_error(error)
                self._errors.append(f"gpu-leak: the report {path} could not be written: {why}")
        if len(self._errors) == before:
            self._recorder.remove_journal()
        if self._errors and not self._config.pluginmanager.hasplugin("terminalreporter"):
            print("\n".join(self._errors), file=sys.stderr)  # noqa: T201 - no reporter is there to say it
