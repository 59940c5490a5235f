"""Keep the check from harming a pytest run: errors are noted, waits are bounded."""

from __future__ import annotations

import contextlib
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuleak.session.attempt import AttemptLog

_Answer = TypeVar("_Answer")


class RunSafeguards:
    """The `engine.stages.Safeguards` of a run; errors go to `attempts`."""

    def __init__(self, attempts: AttemptLog) -> None:
        self._attempts = attempts
        self.guard = attempts.guard
        self.tell = attempts.tell

    def bounded(self, call: Callable[[], _Answer], what: str, advice: str) -> _Answer:
        """Bound a call. If it cannot be stopped, the session is ended."""
        from pytest_gpuleak.session.rerun.hanging import run_bounded  # a run without suspects does not load it

        return run_bounded(self._attempts, call, what, advice)

    @contextlib.contextmanager
    def searching(self, nodeid: str) -> Iterator[None]:
        """Tell of a search that takes long, on a terminal."""
        from pytest_gpuleak.heap.long_work import telling
        from pytest_gpuleak.session.rerun.notice import notice

        text = f"searching for what holds the memory of {nodeid}"
        began, attempt = perf_counter(), self._attempts.attempt
        with notice(self._attempts.config, text) as shown, telling(None if shown is None else shown.show):
            yield
        if attempt is not None and attempt.nodeid == nodeid:
            attempt.note_suspect("search", began)
