"""One test through detect, settle, confirm and explain."""

from __future__ import annotations

import os
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.arrays import array_types
from pytest_gpuleak.adapters.nvml.driver import Driver
from pytest_gpuleak.adapters.torch import lookup as torch_lookup
from pytest_gpuleak.adapters.torch.arrays import are_shared_storages
from pytest_gpuleak.engine.detect.counters import MemoryWatch
from pytest_gpuleak.engine.detect.epochs import EpochDetector
from pytest_gpuleak.engine.detect.fixture_ownership import FixtureSetup, Scopes
from pytest_gpuleak.engine.detect.processes import Children, merge_records
from pytest_gpuleak.engine.own_modules import OwnModules
from pytest_gpuleak.heap.collector import epochs_supported, installed
from pytest_gpuleak.heap.threads import running_threads
from pytest_gpuleak.model.outcomes import CHECKED, TestRecord
from pytest_gpuleak.model.readings import HOST, OUTSIDE, OUTSIDE_FLOOR
from pytest_gpuleak.session.attempt import WORDS, Attempt, outcome_of
from pytest_gpuleak.session.config.markers import policy_of
from pytest_gpuleak.session.peak_hooks import BUDGET_FINDING, shared_meter
from pytest_gpuleak.session.pytest_internals import DeferredFinalizerErrors, log_handlers, release_values, stop_timer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

    from pytest_gpuleak.adapters.processes.facts import LeftProcess
    from pytest_gpuleak.adapters.protocol import ArrayFramework, Rung
    from pytest_gpuleak.engine.check import FixtureJudge
    from pytest_gpuleak.engine.detect.detector import Detector
    from pytest_gpuleak.engine.left_behind import Account
    from pytest_gpuleak.engine.stages import Guard, Stage
    from pytest_gpuleak.explain.known_culprits import Culprits
    from pytest_gpuleak.model.findings import Finding, FixtureRecord
    from pytest_gpuleak.model.outcomes import Verdict
    from pytest_gpuleak.model.policy import Policy, Settings
    from pytest_gpuleak.model.readings import Growth
    from pytest_gpuleak.session.faults import Faults
    from pytest_gpuleak.session.features.baseline import BaselineRun
    from pytest_gpuleak.session.peak_hooks import PeakMeter


class Monitor:
    """Watches the tests of one process.

    Args:
        config: pytest's config.
        settings: what the run was asked for.
        frameworks: whose arrays are watched.
        worker: the xdist worker's id, or ``main``.
        epoch: a detector that watches the collector already.
        memory: reads the counters.
        driver: tells who holds the devices.
        detailed: whether anybody is to read the counters and peaks of a test.
    """

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        frameworks: list[ArrayFramework],
        worker: str,
        epoch: EpochDetector | None = None,
        memory: MemoryWatch | None = None,
        driver: Driver | None = None,
        *,
        detailed: bool = True,
    ) -> None:
        self.config = config
        self.settings = settings
        self.frameworks = frameworks
        self.worker = worker
        self.memory = MemoryWatch((), ()) if memory is None else memory
        self.rerunning = False
        self.log_handlers: tuple[Any, ...] = ()
        self._finalizers = DeferredFinalizerErrors(config)
        self._nested = epoch is None and installed()
        self._epoch = epoch if epoch is not None else EpochDetector(frameworks)
        self.detector: Detector = _scan(frameworks) if self._nested else self._epoch
        self.scopes = Scopes(self.detector, frameworks)
        self._culprits: Culprits | None = None
        self._fixtures: FixtureJudge | None = None
        self._account: Account | None = None
        self._own_modules = OwnModules()
        self.driver = Driver(self.memory.faults) if driver is None else driver
        self.driver.bound = self._bound_driver
        self.children = Children(self.driver.read, self._guard)
        self._attempt: Attempt | None = None
        self._detailed = detailed
        self._meter: PeakMeter | None = None
        self._used: Policy | None = None
        self._gave_up = False
        self._faults: Faults | None = None
        self.upcoming: tuple[str, ...] = ()
        """The test that comes next, once one has been judged, by nodeid."""
        self.threads: frozenset[int] = frozenset()
        self.process = os.getpid()
        self.hangs = False
        """Whether the session is being ended while a test hangs: the heap is left alone."""
        self.note_rerun: Callable[[TestRecord], object] | None = None
        """Takes the record that a test has if the process dies while it is run again; None: no report is written."""
        self.baseline: BaselineRun | None = None
        """The leaks that are known, where the run has a list of them."""

    @property
    def mode(self) -> str:
        """The strategy for tests without a marker, as the header states it."""
        if self.settings.policy.scan == "epoch":
            if not epochs_supported():
                return "scan (this interpreter's collector has no epochs)"
            if self._nested:
                return "scan (another run in this process has the epoch)"
        return self.settings.policy.scan

    def start(self) -> None:
        """Begin to watch; early, so that a conftest.py that binds a function of `gc` binds the watched one."""
        self._own_modules.keep()
        self._use(self.settings.policy)
        self.log_handlers = log_handlers(self.config)
        self.memory.start()

    def stop(self) -> None:
        """Leave the process as it was found. Safe to call twice."""
        self._epoch.stop()
        self.memory.stop()
        self.driver.stop()

    def is_rerunning(self) -> bool:
        """Whether a test is being run again, to confirm a leak: no attempt of the user's."""
        return self.rerunning

    def begin(self, item: pytest.Item) -> None:
        """An attempt of a test begins with its setup."""
        began = perf_counter()
        policy = policy_of(item, self.settings)
        self._use(policy)
        self._attempt = Attempt(item.nodeid, policy)
        self.children.begin()
        self.open()
        self._attempt.overhead_s = perf_counter() - began

    def open(self) -> None:
        """A run of a test begins: what is alive now is not its own."""
        self.threads = running_threads()
        self.scopes.begin()
        self.memory.begin()
        self.detector.open()

    def born(self) -> list[object]:
        """The arrays that the run has made and that are alive, as strong references."""
        arrays = self.detector.look()
        if self.scopes.others:
            arrays = [array for array in arrays if id(array) not in self.scopes.others]
        if self.scopes.own:
            older = self.scopes.own - {id(array) for array in arrays}
            if older:
                arrays += self.detector.find(older)
        return [] if arrays and are_shared_storages(arrays) else arrays

    def note_report(self, report: pytest.TestReport) -> None:
        """Keep what a phase's report says of the test's own outcome."""
        attempt = self._attempt
        if attempt is None:
            return
        attempt.duration_s += report.duration
        if report.outcome == "passed" and not hasattr(report, "wasxfail"):
            return
        outcome = outcome_of(report)
        if attempt.outcome in CHECKED:
            attempt.outcome = outcome
            if outcome not in CHECKED:
                attempt.why = f"it {WORDS[outcome]} in {report.when}: its traceback may hold its locals"

    def note_failure(self, nodeid: str) -> None:
        """A report of the running test was logged as failed beside those of its phases (a sub-test's)."""
        attempt = self._attempt
        if attempt is not None and attempt.nodeid == nodeid and attempt.outcome in CHECKED:
            attempt.outcome, attempt.why = "failed", "a sub-test failed: its traceback may hold its locals"

    def enter_fixture_setup(self, fixture: Any, request: Any) -> None:
        """A wider fixture's setup begins."""
        began = perf_counter()
        from pytest_gpuleak.session.fixtures import node_of, place_of

        place = place_of(fixture, request, self.shorten)
        policy = policy_of(node_of(request), self.settings)
        self.scopes.enter_setup(fixture, place, policy)
        self.children.enter_setup(fixture, place, policy)
        self.memory.enter_setup()
        self._charge(began)

    def leave_fixture_setup(self, fixture: Any, duration_s: float, *, failed: bool) -> None:
        """A wider fixture's setup has ended, in `duration_s` seconds; `failed`: with an error."""
        began = perf_counter()
        self.memory.leave_setup(id(fixture))
        self.children.leave_setup(fixture)
        self.scopes.leave_setup(fixture, duration_s, failed=failed)
        self._charge(began)

    def fixture_teardown(self, fixture: Any) -> None:
        """A wider fixture's teardown begins."""
        began = perf_counter()
        setup = self.scopes.setup_after_failure(fixture)
        if setup is not None:
            self._free_failures()
            setup.outlived_failure = False
        self.scopes.enter_teardown(fixture)
        self.memory.enter_teardown()
        self._charge(began)

    def _free_failures(self) -> None:
        """Collect the garbage of earlier failures now: once the fixture has let go, its own garbage cannot be told apart."""
        from pytest_gpuleak.session.rerun.hanging import full_collection

        self._finalizers.nodeid = self.nodeid
        with self._finalizers:
            for _ in full_collection(self).steps():
                pass

    def fixture_finalised(self, fixture: Any) -> None:
        """A wider fixture has been torn down."""
        began = perf_counter()
        self.memory.leave_teardown(id(fixture))
        self.children.finalised(fixture, self.worker)
        self.scopes.leave_teardown(fixture)
        self._charge(began)

    def judge(self, item: pytest.Item, nextitem: pytest.Item | None) -> TestRecord | None:
        """The verdict on the attempt that has just ended, teardown included; None where none had begun.

        Args:
            item: the test.
            nextitem: what its teardown was given.
        """
        attempt = self._attempt
        if attempt is None:
            return None
        began = perf_counter()
        if self._detailed:
            self.upcoming = () if nextitem is None else (nextitem.nodeid,)
        file, line, _ = item.location
        checked = attempt.outcome in CHECKED
        verdict: Verdict = "clean" if checked else "unchecked"
        findings: tuple[Finding, ...] = ()
        release_values(item, self.log_handlers)
        growth = self.memory.end(brief=True)
        memory = self._record_memory(attempt.nodeid) if self._detailed else {}
        self._finalizers.nodeid = attempt.nodeid
        with self._finalizers:
            if not checked:
                self.scopes.note_failure()
            released = self.scopes.released()
            if released and any(setup.holds_memory() for setup in released):
                stop_timer(item)
            if (
                checked
                and (released or torch_lookup.LOOKUP.broken)
                and self._torch_is_broken(item.nodeid, look=bool(released))
            ):
                return self.give_up(item, torch_lookup.LOOKUP.broken)
            if checked:
                # The fixtures first: the test's arrays, held here, would be found again as holders of theirs.
                if released:
                    self.check_fixtures(released)
                processes = self._left_processes(attempt.nodeid)
                # A scan of the heap takes long enough for a thread to end meanwhile.
                before = frozenset() if self.detector.isolates else running_threads()
                arrays = self.born()
                # Asked at once: a thread that ends while the modules for suspects are loaded lets go of what it held.
                threaded = bool(arrays) and not (before | running_threads()) <= self.threads
                if torch_lookup.LOOKUP.broken and self._torch_is_broken(item.nodeid):
                    return self.give_up(item, torch_lookup.LOOKUP.broken)
                suspected = bool(arrays or processes) or self._grew(growth, attempt.policy)
                if suspected:
                    stop_timer(item)
                    self._own_modules.keep()
                    from pytest_gpuleak.engine.check import Suspicion

                    rebuilt_s = sum(setup.setup_s for setup in released)
                    suspicion = Suspicion(self, item, nextitem, attempt.policy, attempt.duration_s + rebuilt_s)
                    findings = suspicion.investigate(arrays, growth, processes, threaded=threaded)
                    self._own_modules.keep()
                if findings:
                    from pytest_gpuleak.engine.judge.arrays import conclude

                    if self.baseline is not None and attempt.policy.allowed is None:
                        findings = self._settle_by_baseline(self.baseline, findings, attempt.nodeid)
                    verdict, findings = conclude(findings, attempt.policy)
                if suspected or released:
                    self.memory.carry_over_host()
                else:
                    self.memory.carry_over()
            else:
                # A failed test's traceback holds the values of its fixtures as well as its locals.
                self.scopes.postpone(released)
                over_budget = item.stash.get(BUDGET_FINDING, None)
                findings = () if over_budget is None else (over_budget,)
                self.memory.carry_over_host()
            self.detector.close()
        why = attempt.why
        faults: tuple[str, ...] = ()
        if self._faults is not None:
            if verdict == "clean" and self._faults.blinding:
                verdict, why = "unchecked", self._faults.blinding
            faults = self._faults.take()
        attempt.overhead_s += perf_counter() - began
        self._attempt = None
        return TestRecord(
            nodeid=attempt.nodeid,
            verdict=verdict,
            why_unchecked=why,
            outcome=attempt.outcome,
            worker=self.worker,
            duration_s=attempt.duration_s,
            overhead_s=attempt.overhead_s,
            memory=memory,
            findings=findings,
            allowed=attempt.policy.allowed if verdict == "allowed" else None,
            file=file,
            line=None if line is None else line + 1,
            faults=faults,
        )

    def give_up(self, item: pytest.Item, why: str) -> TestRecord:
        """The record of an attempt that the plugin itself failed on: not checked, and the next one begins anew."""
        record = self.unchecked(item, why)
        if self._faults is not None:
            self._faults.take()
        self._attempt = None
        self.rerunning = False
        return record

    def unchecked(self, item: pytest.Item | None, why: str) -> TestRecord:
        """The record of the attempt that is under way, without a verdict.

        Args:
            item: the test; None where it is not at hand.
            why: the reason.
        """
        attempt = self._attempt
        if attempt is None:
            attempt = Attempt("" if item is None else item.nodeid, self.settings.policy)
        file, line, _ = (None, None, "") if item is None else item.location
        return TestRecord(
            nodeid=attempt.nodeid if item is None else item.nodeid,
            verdict="unchecked",
            why_unchecked=why,
            outcome=attempt.outcome,
            worker=self.worker,
            duration_s=attempt.duration_s,
            overhead_s=attempt.overhead_s,
            file=file,
            line=None if line is None else line + 1,
            faults=() if self._faults is None else self._faults.texts,
        )

    def finish(self) -> None:
        """The session is over, with every fixture finalised."""
        self._own_modules.keep()
        if self.hangs or torch_lookup.LOOKUP.broken:
            return
        if self._faults is not None:
            self._faults.leave_to_session()
        self.check_fixtures(self.scopes.released())
        if self._faults is not None:
            self._faults.leave_to_session()

    @property
    def faults(self) -> Faults:
        """What of the check itself has failed. Made for the first suspect or the first fault."""
        if self._faults is None:
            from pytest_gpuleak.session.faults import Faults

            self._faults = Faults(self.config, self.shorten)
        return self._faults

    def _guard(self, stage: Stage, nodeid: str) -> Guard:
        return self.faults.guard(stage, nodeid)

    @property
    def faults_of_session(self) -> list[str]:
        """Faults outside of tests: of fixtures, of counters that were given up, of hooks that are called once."""
        of_session = [] if self._faults is None else self._faults.of_session
        return [*of_session, *self.memory.failures]

    @property
    def nodeid(self) -> str:
        """The test under way; empty between two."""
        return "" if self._attempt is None else self._attempt.nodeid

    def check_fixtures(self, setups: list[FixtureSetup]) -> None:
        """Judge fixtures that have been finalised."""
        if self._fixtures is None and any(setup.holds_memory() for setup in setups):
            self._own_modules.keep()
            from pytest_gpuleak.engine.check import FixtureJudge

            self._fixtures = FixtureJudge(self)
        if self._fixtures is not None:
            self._fixtures.check(setups)

    @property
    def fixture_records(self) -> list[FixtureRecord]:
        """The fixtures that did not let go."""
        records = merge_records([*(self._fixtures.records.values() if self._fixtures else ()), *self.children.records])
        return records if self.baseline is None else self.baseline.settle_fixtures(records)

    def _torch_is_broken(self, nodeid: str, *, look: bool = False) -> bool:
        """Whether nothing can be checked any more, since a walk over the heap could crash the process.

        Args:
            nodeid: the test that has just ended.
            look: whether to look at what `sys.modules` has for torch now; else what is known counts.
        """
        if look:
            array_types(self.frameworks)
        why = torch_lookup.LOOKUP.broken
        if why and not self._gave_up:
            self._gave_up = True
            self.memory.faults.append(f"{why}: nothing was checked from {nodeid} on")
            if self.detector is self._epoch:
                self._epoch.keep_frozen()
        return bool(why)

    def rungs(self, nodeid: str) -> Iterator[Rung]:
        """The ladder to climb for a suspect; each rung is made when the one below has not been enough.

        Args:
            nodeid: whom the settle hook is told of.
        """
        from pytest_gpuleak.engine.settle.steps import Waits
        from pytest_gpuleak.session.rerun.hanging import device_rungs, full_collection

        yield full_collection(self)
        yield from device_rungs(self)
        yield from self.hook_rungs(nodeid)
        yield Waits(self.threads)

    def hook_rungs(self, nodeid: str) -> list[Rung]:
        """The user's own way to let memory go, where there is one.

        Args:
            nodeid: whom the hook is told of.
        """
        if not self.config.hook.pytest_gpuleak_settle.get_hookimpls():
            return []
        from pytest_gpuleak.engine.settle.steps import Call
        from pytest_gpuleak.session.user_hooks import call_settle_hook

        return [Call(lambda: call_settle_hook(self, nodeid))]

    def _bound_driver(self, read: Callable[[], Any]) -> Any:
        """Ask the driver, for a limited time: NVML has none of its own."""
        from pytest_gpuleak.session.rerun.hanging import run_bounded

        return run_bounded(self, read, "a call of the NVIDIA driver", "run without the GPU, or restart its driver")

    @cached_property
    def guarded_frameworks(self) -> list[ArrayFramework]:
        """The frameworks, each behind guards: for suspects, where a fault of one must not cost the verdict of all."""
        from pytest_gpuleak.session.user_hooks import guard_framework

        return [guard_framework(framework, self) for framework in self.frameworks]

    def _record_memory(self, nodeid: str) -> dict[str, dict[str, int]]:
        try:
            return self.memory.record(self._peaks())
        except Exception as error:  # noqa: BLE001 - figures for a reader: the verdict stands without them
            from pytest_gpuleak.engine.stages import FIGURES

            self.faults.note(FIGURES, error, nodeid)
            return {}

    def _left_processes(self, nodeid: str) -> list[LeftProcess]:
        """The processes that the test has left running. Costs microseconds where it left none."""
        try:
            return self.children.left() if self.children.suspects() else []
        except Exception as error:  # noqa: BLE001 - what the operating system says costs no verdict on memory
            from pytest_gpuleak.engine.stages import PROCESSES

            self.faults.note(PROCESSES, error, nodeid)
            return []

    def _settle_by_baseline(
        self, baseline: BaselineRun, findings: tuple[Finding, ...], nodeid: str
    ) -> tuple[Finding, ...]:
        from pytest_gpuleak.engine.stages import BASELINE

        with self.faults.guard(BASELINE, nodeid):
            return baseline.settle(findings, nodeid)
        return findings

    def _peaks(self) -> dict[str, int]:
        """By device, the most bytes allocated at once during the attempt."""
        if self._meter is None:
            self._meter = shared_meter(self.config)
        return {device: peak.allocated.total for device, peak in self._meter.peaks().items()}

    def _grew(self, growth: Growth, policy: Policy) -> bool:
        """Whether a counter has grown so far that it is worth a second look, at the cost of a comparison or two."""
        for (device, metric), size in growth.bytes.items():
            if device == HOST:
                if size >= max(min(policy.retained_bytes, policy.host_bytes), 1) + growth.imported:
                    return True
            elif metric == "reserved":
                if policy.reserved_bytes is not None and size >= max(policy.reserved_bytes, 1):
                    return True
            elif metric == OUTSIDE:
                if size >= OUTSIDE_FLOOR:
                    return True
            elif metric in ("allocated", "requested") and size >= 1:
                return True
        return False

    @property
    def policy(self) -> Policy:
        """What that test may leave behind."""
        return self.settings.policy if self._attempt is None else self._attempt.policy

    @property
    def account(self) -> Account:
        """Who left what."""
        if self._account is None:
            from pytest_gpuleak.engine.left_behind import Account

            self._account = Account()
        return self._account

    def culprits(self) -> Culprits:
        """What held leaked arrays so far in this session."""
        if self._culprits is None:
            from pytest_gpuleak.explain.known_culprits import Culprits

            self._culprits = Culprits()
        return self._culprits

    def shorten(self, path: str) -> str:
        """The path relative to the rootdir where it lies below it."""
        return path.removeprefix(str(self.config.rootpath) + os.sep)

    def is_user_file(self, path: str) -> bool:
        """Whether a source file is the user's own: neither installed, nor the plugin's, nor Python's."""
        from pytest_gpuleak.model.source_files import is_user_file

        return is_user_file(path, str(self.config.rootpath))

    def _use(self, policy: Policy) -> None:
        """Switch to the policy's strategy."""
        if self._nested or policy is self._used:
            return
        self._used = policy
        if policy.scan == "epoch" and epochs_supported():
            self._epoch.start()
            self.detector = self._epoch
        elif self.detector is self._epoch:
            self._epoch.stop()
            self.detector = _scan(self.frameworks)
        self.scopes.detector = self.detector

    def _charge(self, began: float) -> None:
        if self._attempt is not None:
            self._attempt.overhead_s += perf_counter() - began


def _scan(frameworks: list[ArrayFramework]) -> Detector:
    from pytest_gpuleak.engine.detect.heap_scan import ScanDetector  # most runs have epochs

    return ScanDetector(frameworks)
