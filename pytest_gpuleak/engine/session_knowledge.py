"""Keep knowledge that outlives a test, and facts of the engine's process."""

from __future__ import annotations

from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuleak.engine.left_behind import LeftBehind
    from pytest_gpuleak.engine.stages import Safeguards
    from pytest_gpuleak.explain.known_culprits import Culprits


class SessionKnowledge:
    """Keep what is known beyond one test. What only a suspect needs is created for the first suspect.

    Args:
        root: the folder that paths are shown relative to: pytest's rootdir.
        safeguards: keep the check from harming the run.
        worker: the xdist worker's id, or ``main``.
        snapshots: the folder for snapshots of the allocator, if any are written.
        notes_are_read: whether findings that fail nothing are shown or written, so that their holders are searched for.
    """

    def __init__(
        self,
        root: str,
        safeguards: Safeguards,
        worker: str = "main",
        snapshots: Path | None = None,
        *,
        notes_are_read: bool = True,
    ) -> None:
        self._root = root
        self.safeguards = safeguards
        self.worker = worker
        self.snapshots = snapshots
        self.notes_are_read = notes_are_read
        self._began = perf_counter()

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
