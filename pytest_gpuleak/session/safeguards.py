"""Keep the check from harming a pytest run: errors are noted, waits are bounded."""

from __future__ import annotations

import contextlib
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import pytest

from pytest_gpuleak.session.attempt import AttemptLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
_Answer = TypeVar("_Answer")


ATTEMPTS: pytest.StashKey[RunSafeguards] = pytest.StashKey()
"""Key in the config's stash of the log of attempts."""


class RunSafeguards(AttemptLog):
    """The `engine.stages.Safeguards` of a run: the log of attempts, to which errors go."""

    def bounded(self, call: Callable[[], _Answer], what: str, advice: str) -> _Answer:
        """Bound a call. If it cannot be stopped, the session is ended."""
        from pytest_gpuleak.session.rerun.hanging import run_bounded  # a run without suspects does not load it

        return run_bounded(self, call, what, advice)

    @contextlib.contextmanager
    def searching(self, nodeid: str) -> Iterator[None]:
        """Tell of a search that takes long, on a terminal."""
        from pytest_gpuleak.heap.long_work import telling
        from pytest_gpuleak.session.rerun.notice import notice

        text = f"searching for what holds the memory of {nodeid}"
        began, attempt = perf_counter(), self.attempt
        with notice(self.config, text) as shown, telling(None if shown is None else shown.show):
            yield
        if attempt is not None and attempt.nodeid == nodeid:
            attempt.note_suspect("search", began)


def shared_attempts(config: pytest.Config) -> RunSafeguards:
    """Return the run's log of attempts; where the leak check is off, one for re-runs that measure alone."""
    found = config.stash.get(ATTEMPTS, None)
    if found is None:
        from pytest_gpuleak.session.config.settings import read_settings

        found = config.stash[ATTEMPTS] = RunSafeguards(config, read_settings(config), "main", [])
    return found
