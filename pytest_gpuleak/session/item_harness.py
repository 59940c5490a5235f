"""Ask what pytest and other plugins alone hold of a test. The check is loaded with the first test that needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.runner import Keepers, RunnerCheck, RunnerVerdict
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.model.readings import Growth
    from pytest_gpuleak.session.attempt import AttemptLog
    from pytest_gpuleak.session.own_modules import OwnModules


class ItemHarness:
    """Decide on arrays that the runner of a test alone holds, for all tests of one process."""

    def __init__(
        self, tracker: RunTracker, knowledge: SessionKnowledge, attempts: AttemptLog, own_modules: OwnModules
    ) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self._attempts = attempts
        self._own_modules = own_modules
        self._check: RunnerCheck | None = None
        self.comes_first = False
        """Whether the runner is looked at first, since it alone held what the last suspect left."""

    def decide(
        self, item: pytest.Item, arrays: Sequence[object], growth: Growth, *, partly: bool
    ) -> RunnerVerdict | None:
        """Decide at once on what the runner alone holds; None where that is none of the arrays, or not all if not `partly`."""
        check = self._loaded()
        from pytest_gpuleak.engine.stages import RECOGNISE

        with self._attempts.guard(RECOGNISE):
            policy = self._attempts.policy
            return check.check(arrays, growth, item, policy, partly=partly)
        return None

    def keepers_of(self, item: pytest.Item) -> Keepers | None:
        """Return a function that tells what in the runner alone keeps arrays of earlier runs of the test, by their ids.

        None: nothing does, since a test without a class has no instance.
        """
        test_class = _class_of(item)
        return None if test_class is None else lambda arrays: self._loaded().keepers_of(arrays, item, test_class)

    def _loaded(self) -> RunnerCheck:
        if self._check is None:
            self._own_modules.keep()
            from pytest_gpuleak.engine.runner import RunnerCheck

            self._check = RunnerCheck(self._tracker, self._knowledge)
        return self._check


def _class_of(item: pytest.Item) -> type | None:
    return getattr(item, "cls", None)
