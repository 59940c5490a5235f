"""Measure how far a run raises the memory of Python, NumPy and torch on the host, by tracemalloc's own peak.

No counter of the system has such a peak: malloc's have none, and the resident set's falls late, counts pages instead of
what was asked for, and depends on what earlier tests have left free. tracemalloc counts every block of Python's allocators
and of NumPy's exactly, with a peak that can be restarted; frameworks add what their C++ allocates (`HeapPeak.add`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import tracemalloc
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.creation_lines import origin_at
from pytest_gpuleak.adapters.dependencies import replaced
from pytest_gpuleak.model.peak_parts import Peak, PeakMoment, PeakPart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from pytest_gpuleak.model.peak_parts import PeakPhase

    Line = tuple[str, int, str]
    """File, number and function."""
    _Key = tuple[tuple[str, int] | None, str]
    """A line, and what is counted of it."""

FRAMES: Final = 16
"""Frames that are kept of each block where lines are told: a library's own stand between the block and the user's line."""

_DOMAIN: Final = 0x67706C6B
"""tracemalloc's number for blocks of ours; NumPy's is 389047."""

_REACHED: Final = 0.99
"""Part of the peak at which it is taken for reached in the run that tells lines, whose own peak may differ."""

_MOST_PARTS: Final = 9
_SMALL: Final = 50
"""Part of the peak (1/50) below which lines are joined to one."""

_reset_peak: Final = tracemalloc.reset_peak  # the module's is replaced while a test runs

_track: Any = ctypes.pythonapi["PyTraceMalloc_Track"]  # each look-up makes a function of its own
_track.argtypes = (ctypes.c_uint, ctypes.c_size_t, ctypes.c_size_t)
_untrack: Any = ctypes.pythonapi["PyTraceMalloc_Untrack"]
_untrack.argtypes = (ctypes.c_uint, ctypes.c_size_t)


class HeapPeak:
    """Measures within the context, above what is there when it begins. `why_not` says why the measure does not count.

    With `lines`, the user's line at the peak and those that made what was then alive are told, which is slow.
    """

    def __init__(self, lines: LinesAtPeak | None = None) -> None:
        self.why_not = ""
        self.grown = 0
        """The peak, in bytes."""
        self.phase: PeakPhase = "setup"
        self._lines = lines
        self._ours = False
        self._witness: object = None
        self._base = 0
        self._paused_at: int | None = None
        self._context = contextlib.ExitStack()

    def __enter__(self) -> None:
        if not tracemalloc.is_tracing():
            tracemalloc.start(1 if self._lines is None else FRAMES)
            self._ours = True
        self._witness = bytearray(64)
        self._context.enter_context(self._observed_resets())
        _reset_peak()
        self._base = tracemalloc.get_traced_memory()[0]
        if self._lines is not None:
            self._context.enter_context(self._lines.followed(self))

    def __exit__(self, *exception: object) -> None:
        self.observe()
        self._context.close()
        if tracemalloc.get_object_traceback(self._witness) is None:
            self.why_not = self.why_not or "the test stops or clears tracemalloc, which measures it"
        elif self._ours:
            tracemalloc.stop()

    @contextlib.contextmanager
    def _observed_resets(self) -> Iterator[None]:
        """Read the peak before the test restarts it."""
        found = tracemalloc.reset_peak

        def reset_peak() -> None:
            self.observe()
            found()

        with replaced(tracemalloc, "reset_peak", reset_peak):
            yield

    def observe(self) -> None:
        """Note the peak since the last restart."""
        if self._paused_at is None:
            self.grown = max(self.grown, tracemalloc.get_traced_memory()[1] - self._base)

    def has_reached(self, size: int) -> bool:
        """Tell whether the peak is this high: called for each line."""
        return self._paused_at is None and (
            self.grown >= size or tracemalloc.get_traced_memory()[1] - self._base >= size
        )

    def stage(self, stage: PeakPhase) -> None:
        """Tell which stage of a test runs."""
        self.phase = stage

    def pause(self) -> None:
        """Leave out what is made from now on: the setup of a fixture that outlives the test. May be nested."""
        if self._paused_at is None:
            self.observe()
            if self._lines is not None:
                self._lines.pause()
            self._paused_at = tracemalloc.get_traced_memory()[0]

    def resume(self) -> None:
        """Measure again; what the fixture has left was there before."""
        if self._paused_at is not None:
            self._base += tracemalloc.get_traced_memory()[0] - self._paused_at
            self._paused_at = None
            if self._lines is not None:
                self._lines.resume()
            _reset_peak()

    def devices(self) -> Sequence[str]:
        """See `PeakRecorder`."""
        return ("cpu",)

    def peak(self, device: str) -> Peak:
        """Return the peak, with its lines where they were asked for."""
        return Peak(device, self.grown) if self._lines is None else self._lines.peak(device)

    def add(self, number: int, size: int) -> None:
        """Count a block that a framework has allocated, by a number of its own; a number that is known gets the new size."""
        _track(_DOMAIN, number, size)

    def remove(self, number: int) -> None:
        """Count a block no more."""
        _untrack(_DOMAIN, number)


class LinesAtPeak:
    """Tells which of the user's lines ran when `expected` bytes were reached, and which had made what was then alive.

    What is alive is read once that line, or a line that it calls, has ended: what it has freed by then is its own part.
    """

    def __init__(self, expected: int, is_user_file: Callable[[str], bool]) -> None:
        self._expected = expected
        self._least = int(expected * _REACHED)
        self._is_user = functools.cache(is_user_file)
        self._is_user(tracemalloc.__file__)  # loads what tells an installed file, which is no part of the peak
        self._line: Line | None = None
        self._at: Line | None = None
        self._phase: PeakPhase = "call"
        self._before: Counter[_Key] = Counter()
        self._paused: Counter[_Key] = Counter()
        self._alive: Counter[_Key] = Counter()
        self._reached = False

    @contextlib.contextmanager
    def followed(self, heap: HeapPeak) -> Iterator[None]:
        """Follow the lines that the calling thread runs."""

        def look() -> None:
            if not self._reached and heap.has_reached(self._least):
                self._reached = True
                self._at, self._phase, self._alive = self._line, heap.phase, self._by_line()

        def enter(frame: FrameType, event: str, argument: object) -> Any:  # noqa: ARG001 - as sys.settrace calls it
            look()
            return follow if self._is_user(frame.f_code.co_filename) and not self._reached else None

        def follow(frame: FrameType, event: str, argument: object) -> Any:  # noqa: ARG001
            look()
            self._line = self._of_user(frame.f_back if event == "return" else frame)
            return None if self._reached else follow

        self._before = self._by_line()
        sys.settrace(enter)
        try:
            yield
            look()
        finally:
            sys.settrace(None)

    def peak(self, device: str) -> Peak:
        """Return the peak that was expected, its parts by line. What the line at the peak has freed by its end is temporary.

        This run may have taken a little more (caches of libraries): its rows are then the peak.
        """
        grown = self._expected
        if not self._reached:
            return Peak(device, grown, lacks=("the run that tells lines stayed below the peak",))
        self._alive.subtract(self._before)
        parts: list[PeakPart] = []
        held = 0
        for (place, what), size in self._alive.most_common():
            if what == "bytes":
                held += max(0, size)
                if place is not None and size * _SMALL >= grown and len(parts) < _MOST_PARTS:
                    blocks = max(1, self._alive[place, "blocks"])
                    parts.append(PeakPart("held", "", size, blocks, created=origin_at(*place, "")))
        rest = grown - held
        at = self._at
        if rest * _SMALL >= grown and at is not None:
            parts.append(PeakPart("temporary", "", rest, 1, created=origin_at(*at)))
        parts.sort(key=lambda part: -part.bytes)
        moment = None if at is None else PeakMoment(at[0], at[1], "", self._phase, at[2])
        explained = sum(part.bytes for part in parts)
        return Peak(device, max(grown, explained), moment, tuple(parts), max(0, grown - explained))

    def pause(self) -> None:
        """Leave out what is made from now on."""
        self._paused = self._by_line()

    def resume(self) -> None:
        """Follow again; what was made meanwhile was there before."""
        self._before.update(self._by_line())
        self._before.subtract(self._paused)

    def _by_line(self) -> Counter[_Key]:
        """Count the bytes and blocks that are alive, by the user's line that made them; None: no line of the user's."""
        from _tracemalloc import _get_traces  # tracemalloc's snapshot takes 7 s for a million blocks

        lines: Counter[_Key] = Counter()
        for trace in _get_traces():
            frames: Any = trace[2]  # innermost first, by Modules/_tracemalloc.c
            place = next((frame for frame in frames if self._is_user(frame[0])), None)
            lines[place, "bytes"] += trace[1]
            lines[place, "blocks"] += 1
        return lines

    def _of_user(self, frame: FrameType | None) -> Line | None:
        while frame is not None:
            if self._is_user(frame.f_code.co_filename):
                return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
            frame = frame.f_back
        return self._line
