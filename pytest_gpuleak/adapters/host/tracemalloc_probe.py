"""Measure the memory that Python's and NumPy's allocators have handed out, by the allocating line."""

from __future__ import annotations

import linecache
import tracemalloc
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.creation_lines import origin_at
from pytest_gpuleak.adapters.probe_protocol import HostGrowth, HostProbe
from pytest_gpuleak.model.findings import Contribution
from pytest_gpuleak.model.readings import ProbeUnavailable
from pytest_gpuleak.model.source_files import PACKAGE, is_user_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FRAMES: Final = 1
"""Frames kept for each allocation. Importing torch took 2 s untraced, 9 s with 1 frame, 48 s with 4."""

MAX_PARTS: Final = 10
"""Lines that are reported at most."""

MIN_BYTES: Final = 64 * 1024
"""Smallest growth of a line that is reported, in bytes."""

_NOISE: Final = (
    tracemalloc.__file__,
    linecache.__file__,
    "<frozen importlib._bootstrap>",
    "<frozen importlib._bootstrap_external>",
    "<unknown>",
)
_NOISY_FOLDERS: Final = ("/_pytest/", "\\_pytest\\", "/pluggy/", "\\pluggy\\")

Place = tuple[str, int]
Frames = tuple[Place, ...]


class TracemallocProbe(HostProbe):
    """Growth by tracemalloc's count, and the lines behind it. Slows tests two to five times.

    It sees all Python objects and NumPy's data. Tracing that the user began keeps its number of frames and goes on
    after the run; tracing that a test stops restarts with the next test. `floor`: over 1,000 clean tests
    (``benchmarks/host_noise.py``, Linux, 2 cores, 2026-11-21) the largest growth was 3.8 MiB on Python 3.13, a first
    import; the first import of torch added 64 MiB once.
    """

    name = "tracemalloc"
    judges = True
    floor = 4 * 1024 * 1024

    def __init__(self, root: str = "", frames: int = FRAMES) -> None:
        self._root = root
        self._frames = frames
        self._ours = False
        self._before = 0
        self._lines: dict[Place, tuple[int, int]] | None = None

    def start(self) -> None:
        """Begin to trace unless tracing is on. Raises ProbeUnavailable if this interpreter cannot trace."""
        if tracemalloc.is_tracing():
            return
        try:
            tracemalloc.start(self._frames)
        except (RuntimeError, MemoryError) as error:
            raise ProbeUnavailable(f"tracemalloc does not start: {error}") from error
        self._ours = True

    def stop(self) -> None:
        """Stop tracing that the plugin has started. Safe to call twice."""
        self._lines = None
        if self._ours:
            self._ours = False
            tracemalloc.stop()

    def read(self) -> int:
        """Return the bytes traced; 0 if a test has stopped the tracing. Restarts the plugin's own tracing."""
        if tracemalloc.is_tracing():
            return tracemalloc.get_traced_memory()[0]
        if self._ours:
            tracemalloc.start(self._frames)
        return 0

    def begin_record(self) -> None:
        """Sum up the traced bytes by line."""
        self.read()
        self._lines = self._by_line()
        self._before = self.read()

    def end_record(self) -> HostGrowth:
        """Return the growth of the traced bytes and the lines that grew most; 0 bytes if tracing was stopped."""
        before, self._lines = self._lines, None
        now = self.read()
        if before is None or now == 0:
            return HostGrowth(0)
        # The memory of the first sum's lines is not growth of the run: `_before` includes it.
        grown = now - self._before
        parts: list[Contribution] = []
        for place, (size, count) in self._by_line().items():
            old_size, old_count = before.get(place, (0, 0))
            if size - old_size >= MIN_BYTES:
                parts.append(_contribution(place, size - old_size, max(1, count - old_count)))
        parts.sort(key=lambda part: -part.bytes)
        return HostGrowth(grown, tuple(parts[:MAX_PARTS]))

    def _by_line(self) -> dict[Place, tuple[int, int]]:
        # Not tracemalloc.take_snapshot(), which takes 7 s for a million blocks.
        from _tracemalloc import _get_traces

        if not tracemalloc.is_tracing():
            return {}
        by_frames: dict[Frames, tuple[int, int]] = {}
        for trace in _get_traces():
            frames: Any = trace[2]  # a tuple of places, by Modules/_tracemalloc.c
            size, count = by_frames.get(frames, (0, 0))
            by_frames[frames] = (size + trace[1], count + 1)
        is_user = cache(lambda file: is_user_file(file, self._root))
        lines: dict[Place, tuple[int, int]] = {}
        for frames, (size, count) in by_frames.items():
            place = _place(frames, is_user)
            if place is not None:
                old_size, old_count = lines.get(place, (0, 0))
                lines[place] = (old_size + size, old_count + count)
        return lines


def _place(frames: Sequence[Place], is_user: Callable[[str], bool]) -> Place | None:
    """Return the user's innermost line, else the innermost; None for noise. `frames` begin with the innermost."""
    if _is_noise(frames[0][0]):
        return None
    return next((frame for frame in frames if is_user(frame[0])), frames[0])


def _is_noise(file: str) -> bool:
    return file in _NOISE or file.startswith(PACKAGE) or any(folder in file for folder in _NOISY_FOLDERS)


def _contribution(place: Place, size: int, count: int) -> Contribution:
    file, line = place
    # tracemalloc's frames do not name functions.
    return Contribution(f"{file}:{line}", size, count, created=origin_at(file, line, ""))
