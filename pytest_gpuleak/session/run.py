"""Create the parts of a pytest session with the plugin switched on, and forward its events."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.arrays import note_permanent
from pytest_gpuleak.adapters.host.modes import host_probes
from pytest_gpuleak.adapters.nvml.driver import LazyNvml
from pytest_gpuleak.engine.detect.counters import CounterWatch
from pytest_gpuleak.engine.detect.epochs import EpochDetector
from pytest_gpuleak.engine.run_tracker import RunTracker
from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
from pytest_gpuleak.heap.collector import epochs_supported, installed
from pytest_gpuleak.model.text import clean_text, count_of, format_bytes
from pytest_gpuleak.reports.atomic_write import make_folders
from pytest_gpuleak.session.attempt import TRACKER
from pytest_gpuleak.session.closing import WORKER_KEY, Run, close_run
from pytest_gpuleak.session.config.given_values import place_of_option, read_value
from pytest_gpuleak.session.config.markers import check_markers
from pytest_gpuleak.session.config.settings import FAILING, read_scan, read_settings
from pytest_gpuleak.session.features.clean_up_calls import CleanUpCalls
from pytest_gpuleak.session.features.first_init_watch import InitWatch
from pytest_gpuleak.session.frameworks import shared_frameworks
from pytest_gpuleak.session.item_hooks import RuntestHooks
from pytest_gpuleak.session.leak_check import LeakCheck
from pytest_gpuleak.session.peak_hooks import shared_probes, take_over_meter
from pytest_gpuleak.session.pytest_internals import (
    PhaseSignals,
    keep_files_real,
    note_collected,
    plugin_packages,
    runs_nothing,
)
from pytest_gpuleak.session.records.recorder import JournalHooks, Recorder, Sender
from pytest_gpuleak.session.records.run_records import RunProgress, RunRecords
from pytest_gpuleak.session.safeguards import ATTEMPTS, RunSafeguards
from pytest_gpuleak.session.showing import show_first_init, show_run, show_short_summary
from pytest_gpuleak.session.surroundings import path_of_rank, rank_of, read_surroundings

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpuleak.model.policy import Policy, Settings
    from pytest_gpuleak.session.features.baseline import BaselineRun

_DETECTOR: pytest.StashKey[EpochDetector] = pytest.StashKey()
_INIT_WATCH: pytest.StashKey[InitWatch] = pytest.StashKey()


def watch_process(early_config: pytest.Config) -> None:
    """Install the view of the collector, and watch who initialises a device, before any conftest.py is loaded."""
    early_config.stash[_INIT_WATCH] = InitWatch(early_config)
    try:
        mode = read_scan(early_config)
    except (pytest.UsageError, AttributeError):
        return  # pytest_configure tells the user, in its turn
    if mode == "epoch" and epochs_supported() and not installed():
        detector = EpochDetector(shared_frameworks(early_config).arrays)
        detector.start()
        early_config.stash[_DETECTOR] = detector
        early_config.add_cleanup(detector.stop)


def begin_session(config: pytest.Config) -> None:
    """Register the session. Raises pytest.UsageError for a value or a report path that is not accepted."""
    config.pluginmanager.register(Session(config, read_settings(config)), "gpuleak-session")


def _growth_that_fails(policy: Policy) -> str:
    limits = []
    if policy.growing_tensors is not None:
        limits.append(count_of(policy.growing_tensors, "tensor"))
    if policy.growing_bytes is not None:
        limits.append(format_bytes(policy.growing_bytes))
    if not (policy.growing_tensors or policy.growing_bytes):
        return "any growth"
    return f"growth over {' or over '.join(limits)}"


class Session:
    """A pytest session with the plugin switched on."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        self._rank = rank_of(os.environ) if worker is None else None
        if self._rank is not None:
            paths = tuple(path_of_rank(path, self._rank) for path in settings.report_paths)
            settings = settings._replace(report_paths=paths)
        self._config = config
        self._settings = settings
        name = str(worker["workerid"]) if worker is not None else self._rank.name if self._rank else "main"
        surroundings = read_surroundings(os.environ)
        detector = config.stash.get(_DETECTOR, None)
        lines: list[str] = []
        driver = LazyNvml(lines)
        host = host_probes(settings.policy.host, str(config.rootpath))
        counters = CounterWatch(shared_probes(config), host, driver.read, lines)
        baseline: BaselineRun | None = None
        if settings.baseline is not None or settings.update_baseline or settings.fail_stale:
            from pytest_gpuleak.session.features.baseline import open_baseline

            baseline = open_baseline(config, settings)
        # Keep clean tests' details only if something reads them.
        detailed = bool(worker is not None or settings.report_paths or settings.top or surroundings or baseline)
        ledger = RunRecords(detailed=detailed)
        attempts = config.stash[ATTEMPTS] = RunSafeguards(config, settings, name, lines)
        attempts.detailed = detailed
        # Findings that fail nothing are shown (``-v``), or written to a file, which JUnit's XML is not among: a worker's
        # settings name no report, but the controller writes what it finds.
        verbose = getattr(config.option, "verbose", 0) > 0  # without a terminal reporter there is no such option
        written = read_value(config, "report") or settings.baseline or settings.update_baseline
        knowledge = SessionKnowledge(
            str(config.rootpath), attempts, name, settings.snapshots, notes_are_read=bool(written or verbose)
        )
        tracker = config.stash[TRACKER] = RunTracker(shared_frameworks(config), attempts, counters, driver, detector)
        check = LeakCheck(tracker, knowledge, attempts, baseline)
        config.add_cleanup(check.tracker.stop)
        completeness = RunProgress()
        if detailed:
            config.pluginmanager.register(completeness, "gpuleak-completeness")
        recorder = Recorder(settings, ledger, check, completeness)
        config.pluginmanager.register(Sender(check) if worker is not None else recorder, "gpuleak-recorder")
        if settings.report_paths:
            if not runs_nothing(config):
                make_folders(settings.report_paths)
            config.pluginmanager.register(JournalHooks(recorder), "gpuleak-journal")
        self._run = Run(
            check=check,
            ledger=ledger,
            recorder=recorder,
            completeness=completeness,
            surroundings=surroundings,
            # None is there where a conftest.py loads the plugin, or switches it on.
            init_watch=config.stash.get(_INIT_WATCH, None) or InitWatch(config),
            clean_up=CleanUpCalls(config),
        )
        watch = self._run.init_watch
        # xdist's controller collects nothing itself.
        collects = getattr(config.option, "dist", "no") == "no"
        self._run.look_for_devices(watch.look if collects else watch.end_collection)

    def pytest_report_header(self) -> list[str]:
        """Return a line on how tests are judged."""
        policy, on = self._settings.policy, "warns of" if self._settings.warn else "fails on"
        return [
            (
                f"gpu-leak: {self._run.check.mode}; {on} {_growth_that_fails(policy)}, "
                f"{on} {format_bytes(policy.retained_bytes)} or more left behind; re-runs a suspect {policy.confirm} x"
            ),
            *(
                f"gpu-leak: --gpu-leak-warn fails nothing, so {place_of_option(self._config, name)} has no effect"
                for name in FAILING
                if self._settings.warn and read_value(self._config, name)
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
        check_markers(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Register the hooks after every conftest.py: the last registered hook is called outermost."""
        self._run.look_for_devices(self._run.init_watch.end_collection)
        if self._config.hook.pytest_gpuleak_arrays.get_hookimpls():
            from pytest_gpuleak.session.user_hooks import bring_frameworks

            check = self._run.check
            for probe in bring_frameworks(self._config, check.attempts.faults, check.knowledge.safeguards):
                check.tracker.counters.add_devices(probe)
        if not runs_nothing(self._config):
            note_permanent(plugin_packages(self._config))
            note_collected(session)
            keep_files_real()
            self._run.check.start()
            self._run.clean_up.begin()
            self._run.check.tracker.pass_clean_up(self._run.clean_up)
            self._take_hold()

    def _take_hold(self) -> None:
        manager, check = self._config.pluginmanager, self._run.check
        meter = take_over_meter(self._config, needed=check.attempts.detailed)
        manager.register(RuntestHooks(check, meter), "gpuleak-runtest")
        if PhaseSignals.are_lost(self._config):
            manager.register(PhaseSignals(), "gpuleak-signals")
        if self._settings.children == "agent":
            from pytest_gpuleak.session.features.children.agents import Agents
            from pytest_gpuleak.session.features.children.listener import open_listener

            listener = open_listener(str(self._config.rootpath), check.attempts.tell)
            if listener is not None:
                check.helpers.agents = Agents(listener, check.tracker.processes, check.attempts.tell)
                self._config.add_cleanup(check.helpers.agents.close)
        peaks = manager.unregister(name="gpuleak-peak-hooks") if manager.hasplugin("gpuleak-peak-hooks") else None
        if peaks is not None:
            manager.register(peaks, "gpuleak-peak-hooks")  # after the check's, and so outside them
        if self._settings.wait_s is not None:
            from pytest_gpuleak.session.features.device_gate.hooks import DeviceGate

            gate = DeviceGate(check.tracker, check.attempts, self._settings.wait_s, check.helpers.agents)
            gate.start()
            manager.register(gate, "gpuleak-device-gate")
        if self._settings.clean:
            from pytest_gpuleak.session.features.cleanup import CleaningHooks

            # Last, and so outermost: a failed attempt is cleaned before the next attempt's counters are read.
            manager.register(CleaningHooks(check.tracker, check.attempts), "gpuleak-cleaning")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker tells of its run. One that died sends nothing: what is known stands."""
        sent = (getattr(node, "workeroutput", None) or {}).get(WORKER_KEY)
        if sent is None:
            return
        run, worker = self._run, node.gateway.id
        for name, what, take in (
            ("fixtures", f"what the fixtures of the worker {worker} left", partial(run.recorder.take_worker, worker)),
            (
                "explained",
                f"what holds the findings of the worker {worker}",
                partial(run.recorder.take_explained, worker),
            ),
            ("facts", f"the facts of the worker {worker}", run.ledger.facts.add),
        ):
            run.attempt(f"taking over {what}", partial(take, sent[name]), None)
        run.ledger.add_faults(sent["faults"])
        run.faults += [line for line in sent["lines"] if line not in run.faults]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Judge the last fixtures after their teardown, write the reports, set the exit status."""
        close_run(self._run, session, exitstatus)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show the section GPU LEAKS, the summary line, and report errors."""
        if not runs_nothing(self._config):
            show_run(self._run, terminalreporter)
        elif self._settings.no_init_at_collection:
            show_first_init(self._run, terminalreporter)

    @pytest.hookimpl(specname="pytest_terminal_summary", wrapper=True, tryfirst=True)
    def pytest_short_summary_of_leaks(self, terminalreporter: Any) -> Generator[None, object, object]:
        """Add the leaks to pytest's short test summary, which it writes after all hooks."""
        result = yield
        if not runs_nothing(self._config):
            show_short_summary(self._run, terminalreporter)
        return result
