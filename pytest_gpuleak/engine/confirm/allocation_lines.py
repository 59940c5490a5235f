"""Trace a re-run with `tracemalloc`, and tell which user line allocated an object."""

from __future__ import annotations

import linecache
import sys
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.creation_lines import MAX_CODE_LENGTH, printable
from pytest_gpuleak.heap.tracing import CAN_TRACE, is_tracing
from pytest_gpuleak.model.findings import Origin

if TYPE_CHECKING:
    from collections.abc import Callable

FRAMES: Final = 12
"""Frames kept for each allocation: a library's function is called by the user's line."""

MAX_TRACED_RUNS: Final = 10 if sys.version_info < (3, 13) else 1000
"""Runs of a session that are traced. Before Python 3.13 `tracemalloc.stop` does not free the stacks: 0.2 MiB a run, in so
many small blocks that reading the heap's counter takes 50 us longer after each."""

TRACED_RERUN_S: Final = 1.0
"""Seconds that a run may take to be traced, which makes it two to five times as long."""


LEAST_PYTHON_OBJECT: Final = 64 * 1024
"""Smallest Python object, in bytes, that is taken for an array's memory (`numpy.frombuffer` of bytes)."""


class AllocationLines:
    """The user's lines that create a run's objects. Tracing that the user began is used and goes on."""

    def __init__(self, is_user_file: Callable[[str], bool]) -> None:
        self._is_user_file = is_user_file
        self.tracing = False
        """Whether the tracing is the plugin's own."""

    def start(self, expected_s: float | None) -> None:
        """Trace from now on, if a run of `expected_s` seconds is quick enough and nothing traces."""
        if expected_s is None or expected_s > TRACED_RERUN_S or is_tracing() or not CAN_TRACE:
            return
        import tracemalloc

        try:
            tracemalloc.start(FRAMES)
        except (RuntimeError, MemoryError):
            return  # the line is not told
        self.tracing = True

    def knows_any(self, least: int) -> bool:
        """Tell whether memory that an array may use was allocated in the run and lives: lines are looked for in a walk.

        NumPy's own memory is in a domain of its own (numpy/_core/src/multiarray/alloc.c); `least` is its smallest, in bytes.
        """
        if not self.tracing:
            return is_tracing()
        from _tracemalloc import _get_traces  # not tracemalloc.take_snapshot(), which takes 7 s for a million blocks

        # Each begins with its domain and size (Modules/_tracemalloc.c).
        return any(trace[1] >= (least if trace[0] else LEAST_PYTHON_OBJECT) for trace in _get_traces())

    def stop(self) -> None:
        """Stop tracing that the plugin has started. Safe to call twice."""
        if self.tracing:
            import tracemalloc

            self.tracing = False
            tracemalloc.stop()

    def of(self, value: object) -> Origin | None:
        """Return the user's innermost line at which an object was allocated; None where it was not traced."""
        if not is_tracing():
            return None
        import tracemalloc

        for frame in reversed(tracemalloc.get_object_traceback(value) or ()):  # the innermost frame comes last
            if self._is_user_file(frame.filename):
                code = printable(linecache.getline(frame.filename, frame.lineno).strip())[:MAX_CODE_LENGTH]
                return Origin(frame.filename, frame.lineno, "", code)
        return None
