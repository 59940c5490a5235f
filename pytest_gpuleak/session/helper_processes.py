"""Follow the helper processes that wider fixtures own: what memory they have, and what agents within them tell."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from pytest_gpuleak.model.outcomes import CHECKED
from pytest_gpuleak.session.pytest_internals import fixtures_of, stop_timer

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from pytest_gpuleak.engine.detect.helper_memory import HelperWatch
    from pytest_gpuleak.engine.detect.protocol import FixtureKey
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.helpers import HelperMemory
    from pytest_gpuleak.model.outcomes import FixturePlace, Verdict
    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.session.attempt import Attempt, AttemptLog
    from pytest_gpuleak.session.features.children.agents import Agents
    from pytest_gpuleak.session.own_modules import OwnModules
    from pytest_gpuleak.session.rerun.subject import ItemSubject


class HelperProcesses:
    """The helper processes of this run. Their code is loaded once a fixture owns one; a session without any pays a look."""

    def __init__(self, tracker: RunTracker, attempts: AttemptLog, own_modules: OwnModules) -> None:
        self._tracker = tracker
        self._attempts = attempts
        self._own_modules = own_modules
        self._follows = attempts.settings.children != "off"
        self._memory: HelperWatch | None = None
        self._item: pytest.Item | None = None
        self.agents: Agents | None = None
        """Check the processes from within; None: `--gpu-leak-children` does not ask for it, or it cannot be."""

    def begin(self, item: pytest.Item, attempt: Attempt, policy: Policy) -> None:
        """Begin a test."""
        if self.agents is not None:
            self._item = item
            self.agents.begin(policy)
        self._tracker.processes.begin()
        self._follow(lambda memory: memory.begin_test(attempt.nodeid))

    def setup_begins(self, fixture: FixtureKey, place: FixturePlace, policy: Policy) -> None:
        """See `FixtureEvents`."""
        if self.agents is not None:
            self.agents.setup_begins(fixture, place, policy, again=self._attempts.rerunning)

    def setup_ends(self, fixture: FixtureKey, *, failed: bool) -> None:
        """See `FixtureEvents`."""
        if self.agents is not None:
            self.agents.setup_ends(fixture, failed=failed, again=self._attempts.rerunning)

    def teardown_begins(self, fixture: FixtureKey) -> None:
        """Read now what there is, and end the test there if it ends: the process may end with the fixture."""
        if self._attempts.attempt is not None and self._attempts.attempt.ends:
            self._follow(lambda memory: memory.before_teardown(fixture))
            self._end_in_agents()
            if self.agents is not None and self._item is not None:
                self.agents.await_suspects()
        if self.agents is not None:
            self.agents.teardown_begins(fixture, again=self._attempts.rerunning)

    def teardown_ends(self, fixture: FixtureKey) -> None:
        """See `FixtureEvents`."""
        if self.agents is not None:
            self.agents.teardown_ends(fixture, again=self._attempts.rerunning)

    def read(self, attempt: Attempt) -> None:
        """Read their memory after a test."""

        def read(memory: HelperWatch) -> None:
            readings = memory.end_test()
            if self._attempts.detailed:
                attempt.helpers = readings

        self._follow(read)

    def end(self) -> None:
        """End the test in the processes."""
        self._end_in_agents()
        self._item = None

    def drop(self) -> None:
        """Leave unchecked what agents have begun to judge: the test did not pass."""
        if self.agents is not None:
            self.agents.drop()

    def confirm(
        self, item: pytest.Item, attempt: Attempt, subject: Callable[[], ItemSubject]
    ) -> tuple[Finding, ...] | None:
        """Return what the test has left in the processes, and run it again as often as their agents still ask for.

        None where no agent has judged it.
        """
        if self.agents is None or not self.agents.has_judged:
            return None
        from pytest_gpuleak.engine.stages import CONFIRM

        self._own_modules.keep()
        stop_timer(item)
        test, began = subject(), perf_counter()
        try:
            with self._attempts.guard(CONFIRM, attempt.nodeid), test.confirming():
                found = self.agents.confirm(test.run_for_agents)
                test.stays = test.rebuilds
                again = test.run_for_agents if test.stays else None
                return found + self.agents.confirm_in_new_fixtures(again, lambda: set(map(id, fixtures_of(item))))
        finally:
            attempt.note_suspect("check", began)
        return ()

    def settle(self, verdict: Verdict, attempt: Attempt) -> Verdict:
        """Return the verdict; a clean test is unchecked where a process could not be checked."""
        if verdict == "clean" and self.agents is not None and self.agents.unchecked:
            attempt.why = "; ".join(self.agents.unchecked)
            return "unchecked"
        return verdict

    def memory(self) -> list[HelperMemory]:
        """Return what the processes have had over the tests."""
        if self._memory is None:
            return []
        return self._memory.helpers(self._attempts.worker, agent=self._attempts.settings.children == "agent")

    def _follow(self, event: Callable[[HelperWatch], object]) -> None:
        """Follow the memory from the first process on that a fixture starts. An error ends that reading, and no more."""
        if self._memory is None:
            if not (self._follows and self._tracker.processes.has_owned):
                return
            self._own_modules.keep()
            from pytest_gpuleak.engine.detect.helper_memory import HelperWatch

            self._memory = HelperWatch(self._tracker.processes, self._tracker.driver)
        try:
            event(self._memory)
        except Exception as error:  # noqa: BLE001 - no verdict comes of it
            from pytest_gpuleak.engine.stages import FIGURES

            self._attempts.faults.note(FIGURES, error, self._attempts.nodeid)

    def _end_in_agents(self) -> None:
        attempt, item = self._attempts.attempt, self._item
        if self.agents is not None and attempt is not None and item is not None:
            judge = attempt.outcome in CHECKED
            self.agents.end(attempt.nodeid, judge, lambda: set(map(id, fixtures_of(item))))
