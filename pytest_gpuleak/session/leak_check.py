"""Check the tests of one process: begin and end their runs, and hand suspects to the engine."""

from __future__ import annotations

import contextlib
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.outcomes import CHECKED
from pytest_gpuleak.session.attempt import EndedRun
from pytest_gpuleak.session.config.markers import policy_of
from pytest_gpuleak.session.helper_processes import HelperProcesses
from pytest_gpuleak.session.late_findings import LateFindings
from pytest_gpuleak.session.own_modules import OwnModules
from pytest_gpuleak.session.peak_hooks import BUDGET_FINDING
from pytest_gpuleak.session.pytest_internals import (
    ELSEWHERE,
    DeferredFinalizerErrors,
    log_handlers,
    older_instance,
    release_values,
    runs_elsewhere,
    stop_timer,
)

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Iterator, Sequence
    from typing import Literal

    import pytest

    from pytest_gpuleak.adapters.processes.facts import LeftProcess
    from pytest_gpuleak.adapters.protocol import SettleStep
    from pytest_gpuleak.engine.detect.fixture_ownership import OwnedSetup
    from pytest_gpuleak.engine.detect.protocol import FixtureKey
    from pytest_gpuleak.engine.fixture_check import FixtureCheck
    from pytest_gpuleak.engine.garbage_check import Garbage, GarbageCheck
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.model.devices import LostDevice
    from pytest_gpuleak.model.findings import Finding, FixtureRecord
    from pytest_gpuleak.model.outcomes import FixturePlace, TestRecord, Verdict
    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.model.readings import Growth
    from pytest_gpuleak.session.attempt import Attempt, AttemptLog
    from pytest_gpuleak.session.features.baseline import BaselineRun
    from pytest_gpuleak.session.rerun.subject import ItemSubject


class LeakCheck:
    """Check the tests of one process, following fixtures as `FixtureEvents`."""

    def __init__(
        self,
        tracker: RunTracker,
        knowledge: SessionKnowledge,
        attempts: AttemptLog,
        baseline: BaselineRun | None,
    ) -> None:
        self.config = config = attempts.config
        self.settings = settings = attempts.settings
        self.tracker = tracker
        self.knowledge = knowledge
        self.attempts = attempts
        self.mode = tracker.mode(settings.policy.scan)
        """The strategy for tests without a marker, as the header states it."""
        self.baseline = baseline
        self._log_handlers: tuple[Any, ...] = ()
        self._finalizers = DeferredFinalizerErrors(config)
        self._own_modules = OwnModules()
        self._fixtures: FixtureCheck | None = None
        self.late = LateFindings(tracker, knowledge, self._own_modules)
        self.lost_device: LostDevice | None = None
        """The device that stopped answering, after an error that CUDA calls sticky: nothing is checked since."""
        self._last_answered: str | None = None
        self._instance: weakref.ref[object] | None = None
        self.helpers = HelperProcesses(tracker, attempts, self._own_modules)

    def start(self) -> None:
        """Begin to watch the process."""
        self._own_modules.keep()
        self._log_handlers = log_handlers(self.config)
        self.tracker.start(self.settings.policy)

    def finish(self) -> None:
        """Search for the last holders and judge what is left at the end of the session, after the last teardown."""
        self._own_modules.keep()
        if self.attempts.hangs or self.tracker.why_blind("the end of the session"):
            return
        self.attempts.faults.leave_to_session()
        self.late.finish()
        if self.lost_device is None:
            self._check_fixtures(self.tracker.take_released())
        self.attempts.faults.leave_to_session()

    @property
    def fixture_records(self) -> list[FixtureRecord]:
        """The fixtures that left something."""
        for place, policy, findings in () if self.helpers.agents is None else self.helpers.agents.of_fixtures():
            self._fixture_check().take_findings(place, policy, findings)
        records = [] if self._fixtures is None else self._fixtures.records
        return records if self.baseline is None else self.baseline.settle_fixtures(records)

    @property
    def faults_of_session(self) -> list[str]:
        """Faults outside of tests: of fixtures, of counters that were given up, of hooks that are called once."""
        return [*self.attempts.faults.of_session, *self.tracker.counters.failures]

    def begin(self, item: pytest.Item) -> None:
        """Begin an attempt of a test, with its setup."""
        began = perf_counter()
        policy = policy_of(item, self.settings)
        self.tracker.use(policy)
        attempt = self.attempts.begin(item.nodeid, policy)
        if self.lost_device is not None:
            return
        self._instance = older_instance(item)
        self.helpers.begin(item, attempt, policy)
        self.knowledge.begin_test(self.tracker)
        if self.tracker.counters.lost is not None:
            self._why_lost("before", attempt.nodeid)
        attempt.overhead_s = perf_counter() - began

    @contextlib.contextmanager
    def _values_let_go(self) -> Iterator[None]:
        """Take what the body frees for values of fixtures that were torn down: the test's own reference is the last."""
        older = self.knowledge.older(self.tracker)
        older.teardown_begins()
        with self.tracker.values_let_go():
            yield
        older.teardown_ends()

    def setup_begins(self, fixture: FixtureKey, place: FixturePlace, policy: Policy) -> None:
        """See `FixtureEvents`."""
        began = perf_counter()
        self.tracker.setup_begins(fixture, place, policy)
        self.helpers.setup_begins(fixture, place, policy)
        self.attempts.charge(began)

    def setup_ends(self, fixture: FixtureKey, duration_s: float, *, failed: bool) -> None:
        """See `FixtureEvents`."""
        began = perf_counter()
        self.tracker.setup_ends(fixture, duration_s, failed=failed)
        self.helpers.setup_ends(fixture, failed=failed)
        self.attempts.charge(began)

    def teardown_begins(self, fixture: FixtureKey) -> None:
        """See `FixtureEvents`."""
        began = perf_counter()
        setup = self.tracker.ownership.setup_after_failure(fixture)
        if setup is not None:
            self._free_failures()
            setup.outlived_failure = False
        self.helpers.teardown_begins(fixture)
        self.knowledge.teardown_begins(self.tracker, fixture)
        self.attempts.charge(began)

    def teardown_ends(self, fixture: FixtureKey) -> None:
        """See `FixtureEvents`."""
        began = perf_counter()
        rerunning = self.attempts.rerunning
        self.knowledge.teardown_ends(self.tracker, fixture, again=rerunning)
        self.helpers.teardown_ends(fixture)
        for left in self.tracker.processes.take_left_by_fixtures():
            if not rerunning:
                self._fixture_check().check_processes(left)
        self.attempts.charge(began)

    def judge(self, item: pytest.Item, nextitem: pytest.Item | None, seen: Callable[[], object]) -> TestRecord | None:
        """Return the record of the attempt that has just ended, teardown included; None where none had begun.

        `seen` resumes automatic collections, which would free cycles, once what was left is known, before user code.
        """
        attempt, tracker = self.attempts.attempt, self.tracker
        if attempt is None:
            return None
        began = perf_counter()
        self.helpers.read(attempt)
        if self.attempts.detailed:
            self.attempts.upcoming = () if nextitem is None else (nextitem.nodeid,)
        if self.lost_device is not None:
            return self.attempts.give_up(item, self.lost_device.reason)
        self.helpers.end()
        release_values(item, self._log_handlers, self._values_let_go)
        growth = tracker.counters.end(lambda: tracker.least_host_growth(attempt.policy))
        lost = self._why_lost("during", attempt.nodeid)
        memory = self.attempts.read_memory(tracker.counters) if self.attempts.detailed else {}
        self._finalizers.nodeid = attempt.nodeid
        with self._finalizers:
            if attempt.outcome in CHECKED:
                judged = lost or self._check(EndedRun(item, nextitem, attempt, seen), growth)
                if tracker.counters.lost is not None:  # a re-run may have lost it
                    self._why_lost("during", attempt.nodeid)
            else:
                judged = self._postpone(item)
            if isinstance(judged, str):
                return self.attempts.give_up(item, judged)
            seen()
            tracker.end_test()
        verdict, findings = judged
        verdict = self.helpers.settle(verdict, attempt)
        record = self.attempts.end(item, verdict, findings, memory, began)
        if record.verdict == "clean" and runs_elsewhere(item):
            return record._replace(verdict="unchecked", why_unchecked=ELSEWHERE)
        return record

    def _why_lost(self, moment: Literal["before", "during"], nodeid: str) -> str:
        """Return that a device was lost, once the counters were read for a test; empty while all answer."""
        counters = self.tracker.counters
        if counters.lost is None:
            if counters.has_answered and moment == "during":
                self._last_answered = nodeid
            return ""
        if self.lost_device is None:
            from pytest_gpuleak.model.devices import LostDevice  # most runs lose none

            lost = LostDevice(*counters.lost, nodeid, moment, self._last_answered, self.attempts.worker)
            self.lost_device = lost
        return self.lost_device.reason

    def _postpone(self, item: pytest.Item) -> tuple[Verdict, tuple[Finding, ...]]:
        """Leave a failed test unchecked: its traceback holds its locals, and the values of its fixtures."""
        tracker = self.tracker
        self.helpers.drop()
        tracker.ownership.note_failure()
        released = tracker.take_released()
        if any(setup.holds_memory() for setup in released):
            stop_timer(item)
        tracker.ownership.postpone(released)
        over_budget = item.stash.get(BUDGET_FINDING, None)
        return "unchecked", () if over_budget is None else (over_budget,)

    def _check(self, ended: EndedRun, growth: Growth) -> tuple[Verdict, tuple[Finding, ...]] | str:
        """Return the verdict and the findings; as text, why checking has ended."""
        tracker, item = self.tracker, ended.item
        nodeid, policy = ended.attempt.nodeid, ended.attempt.policy
        # The fixtures first: the test's arrays, held here, would be found as holders of theirs.
        released = ended.rebuilt = tracker.take_released()
        if released and any(setup.holds_memory() for setup in released):
            stop_timer(item)
        if blind := tracker.why_blind(nodeid, look=bool(released)):
            return blind
        if released:
            self._check_fixtures(released)
        processes = self._left_processes(item, ended.attempt)
        arrays = tracker.left_arrays()
        if blind := tracker.why_blind(nodeid):
            return blind
        findings: tuple[Finding, ...] = ()
        garbage: Garbage | None = None
        if arrays:
            garbage, growth = self._collect_garbage(arrays, growth, ended)
        growth, suspected = self._suspects(growth, policy, arrays or processes)
        goes = released or tracker.ownership.held_by_released  # by a fixture, or by a finalizer of a wider node
        ended.left_in_fixtures = bool(goes and policy.confirm) and tracker.left_in_released(policy)
        if suspected or ended.left_in_fixtures:
            stop_timer(item)
            findings = self._check_suspect(ended, growth, arrays, processes, garbage)
        elif garbage is not None:
            findings = self._garbage_check.findings(garbage, nodeid, policy)
        elsewhere = self.helpers.confirm(item, ended.attempt, lambda: self._subject(ended))
        findings = (*findings, *(elsewhere or ()))
        if not (released or garbage or suspected or elsewhere is not None):  # a re-run has moved the counters
            tracker.counters.carry_over()
        return self._conclude(findings, nodeid, policy) if findings else ("clean", ())

    def _suspects(self, growth: Growth, policy: Policy, left: Sequence[object]) -> tuple[Growth, bool]:
        """Tell whether the test is a suspect, for what it has `left` or for its growth; return what is its own of that."""
        tracker, suspected = self.tracker, bool(left)
        let_go = self.knowledge.older(tracker).let_go(()) if not left and tracker.may_hide_growth else {}
        if tracker.is_worth_a_check(growth.plus(let_go), policy):
            self._own_modules.keep()
            growth, suspected = tracker.own_growth(growth, policy, let_go, suspected=suspected)
        return growth, tracker.compiled() | tracker.opens_files() | suspected

    def _collect_garbage(self, arrays: list[object], growth: Growth, ended: EndedRun) -> tuple[Garbage | None, Growth]:
        """Leave in `arrays` those that a young collection does not free, and return the others, if that can be told.

        Returns also the growth, without theirs.
        """
        tracker, attempt = self.tracker, ended.attempt
        stop_timer(ended.item)
        began = perf_counter()
        garbage = self._garbage_check.collect(arrays, self._instance, attempt.nodeid, attempt.policy)
        attempt.note_suspect("check", began)
        if garbage is not None and not arrays and tracker.is_worth_a_check(growth, attempt.policy):
            growth = growth.lowest(tracker.counters.end())
        return garbage, growth

    @cached_property
    def _garbage_check(self) -> GarbageCheck:
        self._own_modules.keep()
        from pytest_gpuleak.engine.garbage_check import GarbageCheck

        return GarbageCheck(self.tracker, self.knowledge)

    def _check_suspect(
        self,
        ended: EndedRun,
        growth: Growth,
        arrays: list[object],
        processes: list[LeftProcess],
        garbage: Garbage | None,
    ) -> tuple[Finding, ...]:
        item, attempt = ended.item, ended.attempt
        self._own_modules.keep()
        from pytest_gpuleak.engine.subject import Suspect
        from pytest_gpuleak.engine.suspect import SuspectCheck
        from pytest_gpuleak.engine.suspect_evidence import FirstRun

        subject = self._subject(ended)
        subject.stays = ended.left_in_fixtures
        self.late.prepare(at_once=self.baseline is not None and not self.baseline.lists(item.nodeid))
        check = SuspectCheck(Suspect(self.tracker, self.knowledge, subject, attempt.policy), item)
        began = perf_counter()
        try:
            findings = check.check(FirstRun(arrays, growth, processes, garbage, ended.seen))
        finally:
            attempt.note_suspect("check", began)
        self._own_modules.keep()
        self.late.explain_due()
        return findings

    def _subject(self, ended: EndedRun) -> ItemSubject:
        from pytest_gpuleak.session.rerun.subject import ItemSubject

        expected_s = ended.attempt.duration_s + sum(setup.setup_s for setup in ended.rebuilt)
        subject = ItemSubject(
            ended.item, ended.nextitem, expected_s, self.attempts, self._values_let_go, self._settle_steps
        )
        subject.agents = self.helpers.agents
        subject.rebuilds = bool(ended.rebuilt) or ended.left_in_fixtures
        subject.explain_late = self.late.explain
        return subject

    def _conclude(
        self, findings: tuple[Finding, ...], nodeid: str, policy: Policy
    ) -> tuple[Verdict, tuple[Finding, ...]]:
        from pytest_gpuleak.engine.judge.arrays import conclude
        from pytest_gpuleak.engine.stages import BASELINE

        if self.baseline is not None and policy.allowed is None:
            with self.attempts.guard(BASELINE, nodeid):
                findings = self.baseline.settle(findings, nodeid)
        return conclude(findings, policy)

    def _check_fixtures(self, setups: list[OwnedSetup]) -> None:
        if self._fixtures is not None or any(setup.holds_memory() for setup in setups):
            self._fixture_check().check(setups)

    def _fixture_check(self) -> FixtureCheck:
        if self._fixtures is None:
            self._own_modules.keep()
            from pytest_gpuleak.engine.fixture_check import FixtureCheck

            self._fixtures = FixtureCheck(self.tracker, self.knowledge, self._settle_steps)
        return self._fixtures

    def _settle_steps(self, nodeid: str) -> Sequence[SettleStep]:
        from pytest_gpuleak.session.user_hooks import steps_of_settle_hook

        return steps_of_settle_hook(self.config, self.knowledge.safeguards, nodeid)

    def _free_failures(self) -> None:
        """Collect the garbage of earlier failures now: after the fixture's teardown its own garbage looks the same."""
        from pytest_gpuleak.engine.settle.steps import full_collection

        self._finalizers.nodeid = self.attempts.nodeid
        with self._finalizers:
            for _ in full_collection(self.knowledge.safeguards).steps():
                pass

    def _left_processes(self, item: pytest.Item, attempt: Attempt) -> list[LeftProcess]:
        processes = self.tracker.processes
        try:
            if not processes.suspects():
                return []
            began = perf_counter()
            stop_timer(item)
            left = processes.left()
            attempt.note_suspect("check", began)
        except Exception as error:  # noqa: BLE001 - an error of the operating system costs no verdict on memory
            from pytest_gpuleak.engine.stages import PROCESSES

            self.attempts.faults.note(PROCESSES, error, attempt.nodeid)
            return []
        return left
