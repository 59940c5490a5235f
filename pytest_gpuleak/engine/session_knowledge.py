"""Keep knowledge that outlives a test, and facts of the engine's process."""

from __future__ import annotations

from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuleak.engine.left_behind import LeftBehind
    from pytest_gpuleak.engine.lines_record import LinesRecord
    from pytest_gpuleak.engine.replaced_record import ReplacedRecord
    from pytest_gpuleak.engine.settle.attempts import Attempts
    from pytest_gpuleak.engine.settle.garbage_record import GarbageRecord
    from pytest_gpuleak.engine.stages import Safeguards
    from pytest_gpuleak.explain.cycles import CycleReader
    from pytest_gpuleak.explain.known_culprits import Culprits

LATE_LOOKS_IN_VAIN: Final = 2
"""Looks for known holders among old objects that were in vain in a row, after which they are rare."""


class SessionKnowledge:
    """Keep what is known beyond one test. What only a suspect needs is created for the first suspect.

    Args:
        root: the folder that paths are shown relative to: pytest's rootdir.
        safeguards: keep the check from harming the run.
        worker: the xdist worker's id, or ``main``.
        snapshots: the folder for snapshots of the allocator, if any are written.
        notes_are_read: whether findings that fail nothing are shown or written, so that their holders are searched for.
        in_tests: whether tests are checked; else hints do not speak of teardown, fixtures and markers.
    """

    def __init__(
        self,
        root: str,
        safeguards: Safeguards,
        worker: str = "main",
        snapshots: Path | None = None,
        *,
        notes_are_read: bool = True,
        in_tests: bool = True,
    ) -> None:
        self._root = root
        self.safeguards = safeguards
        self.worker = worker
        self.snapshots = snapshots
        self.notes_are_read = notes_are_read
        self.in_tests = in_tests
        self._began = perf_counter()
        self.programs = 0
        """Number of compiled programs when a suspect was last checked."""
        self.lender_searches = 0
        """Searches so far for what lends arrays their memory."""
        self.library_states: set[tuple[str, int]] = set()
        """Devices and bytes of what libraries keep there for the whole process, as far as a test has made it."""
        self.known_arrays: dict[int, int] = {}
        """Bytes of the memory behind untracked arrays at the last walk for them, by its key."""

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the session began."""
        return perf_counter() - self._began

    @cached_property
    def culprits(self) -> Culprits:
        """Return the holders of leaked arrays so far in this session."""
        from pytest_gpuleak.explain.known_culprits import Culprits

        return Culprits(self.is_user_file)

    @cached_property
    def cycles(self) -> CycleReader:
        """Return the reader of reference cycles, which has a few seconds for the whole session."""
        from pytest_gpuleak.explain.cycles import CycleReader

        return CycleReader(self.is_user_file)

    @cached_property
    def garbage(self) -> GarbageRecord:
        """Return the record of whether what suspects leave is garbage."""
        from pytest_gpuleak.engine.settle.garbage_record import GarbageRecord

        return GarbageRecord()

    @cached_property
    def late_looks(self) -> Attempts:
        """Return the count of looks for known holders among old objects: each walks over the heap once."""
        from pytest_gpuleak.engine.settle.attempts import Attempts

        return Attempts(LATE_LOOKS_IN_VAIN)

    @cached_property
    def replaced(self) -> ReplacedRecord:
        """Return the record of what the last small suspects left in each other's place."""
        from pytest_gpuleak.engine.replaced_record import ReplacedRecord

        return ReplacedRecord()

    @cached_property
    def lines(self) -> LinesRecord:
        """Return the record of whether the lines that a re-run notes were of use."""
        from pytest_gpuleak.engine.lines_record import LinesRecord

        return LinesRecord()

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
