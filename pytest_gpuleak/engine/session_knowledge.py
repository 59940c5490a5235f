"""Keep knowledge that outlives a test, and facts of the engine's process."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuleak.engine.detect.protocol import FixtureKey
    from pytest_gpuleak.engine.left_behind import LeftBehind
    from pytest_gpuleak.engine.older import OlderArrays
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.stages import Safeguards
    from pytest_gpuleak.explain.cycles import CycleReader
    from pytest_gpuleak.explain.lasting_roots import LastingRoots


class Later(Protocol):
    """Takes findings whose holders are searched for later, with others: `engine.late.LateSearch`."""

    def take(self, waiting: Any) -> None:
        """Let the findings of an `engine.late.Waiting` wait."""


@dataclasses.dataclass(eq=False, repr=False)
class SessionKnowledge:
    """Keep what is known beyond one test. What only a suspect needs is created for the first suspect.

    Attributes:
        _root: the folder that paths are shown relative to: pytest's rootdir.
        safeguards: keep the check from harming the run.
        worker: the xdist worker's id, or ``main``.
        snapshots: the folder for snapshots of the allocator, if any are written.
        notes_are_read: whether findings that fail nothing are shown or written, so that their holders are searched for.
    """

    _root: str
    safeguards: Safeguards
    worker: str = "main"
    snapshots: Path | None = None
    _: dataclasses.KW_ONLY
    notes_are_read: bool = True

    def __post_init__(self) -> None:
        self.in_tests = True
        """Whether tests are checked; else hints do not speak of teardown, fixtures and markers."""
        self.late: Later | None = None
        """Who takes findings whose holders are searched for later, with others; None: each is searched for at once."""
        self._older: OlderArrays | None = None
        self.programs = 0
        """Number of compiled programs when a suspect was last checked."""
        self.lender_searches = 0
        """Searches so far for what lends arrays their memory."""
        self.library_states: set[tuple[str, int]] = set()
        """Devices and bytes of what libraries keep there for the whole process, as far as a test has made it."""
        self.unmet: set[int] = set()
        """Storages of older arrays that no lasting root led to when last searched for."""

    @cached_property
    def roots(self) -> LastingRoots:
        """Return the roots that outlive the tests, as far as known."""
        from pytest_gpuleak.explain.lasting_roots import LastingRoots

        return LastingRoots(self.is_user_file)

    @cached_property
    def cycles(self) -> CycleReader:
        """Return the reader of reference cycles."""
        from pytest_gpuleak.explain.cycles import CycleReader

        return CycleReader(self.is_user_file)

    def older(self, tracker: RunTracker) -> OlderArrays:
        """Return the arrays that are older than the running test."""
        if self._older is None:
            from pytest_gpuleak.engine.older import OlderArrays

            self._older = OlderArrays(self.left_behind, tracker.ownership)
        return self._older

    def begin_test(self, tracker: RunTracker) -> None:
        """Begin the first run of a test, and note what is older."""
        older = self.older(tracker)
        if not older.is_complete:
            older.look(tracker.detector, tracker.frameworks.arrays)
        tracker.begin_run()
        older.begin_test()

    def teardown_begins(self, tracker: RunTracker, fixture: FixtureKey) -> None:
        """See `FixtureEvents`."""
        tracker.teardown_begins(fixture)
        self.older(tracker).teardown_begins()

    def teardown_ends(self, tracker: RunTracker, fixture: FixtureKey, *, again: bool) -> None:
        """See `FixtureEvents`. What a re-run has set up `again` was judged in its own turn: to be run again is no fact of a fixture."""
        due = tracker.take_released()
        try:
            self.older(tracker).teardown_ends()
            tracker.teardown_ends(fixture)
        finally:
            if again:
                tracker.take_released()
            tracker.ownership.postpone(due)

    @cached_property
    def left_behind(self) -> LeftBehind:
        """Return the account of who left what."""
        from pytest_gpuleak.engine.left_behind import LeftBehind

        return LeftBehind()

    def shorten(self, path: str) -> str:
        """Make a path relative to the root where it lies below it."""
        from pytest_gpuleak.model.source_files import shorten

        return shorten(path, self._root)

    def is_user_file(self, path: str) -> bool:
        """Tell whether a source file is the user's own: neither installed, nor the plugin's, nor Python's."""
        from pytest_gpuleak.model.source_files import is_user_file

        return is_user_file(path, self._root)
