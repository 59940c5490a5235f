"""Reading a counter less often once reading it takes long."""

from __future__ import annotations

from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEAR_S = 50e-6
"""Seconds that a reading may take without more ado."""
SHARE = 0.02
"""Of the time between two readings, what a dear one may take."""
STEP_PAGES = 64
"""Pages by which the process's address space may change without a new reading: 256 KiB where a page has 4 KiB."""


class ThriftyReader:
    """Reads a counter anew, or says what it read last, where a reading is dear and nothing seems to have changed.

    glibc's ``mallinfo2`` walks every free chunk (`int_mallinfo`, malloc/malloc.c), and a session leaves some three a
    test: 1 us at its start, 60 after 1,000 trivial tests. A dear counter is read anew when the
    process's address space has changed, which growth of many MiB brings about unless it fits into holes, and else as
    often as `SHARE` of the time allows.

    Args:
        read: reads the counter.
        clock: seconds, from anywhere.
        pages: the process's address space, in pages; 0 where it cannot be told.
    """

    def __init__(
        self, read: Callable[[], int], clock: Callable[[], float] = perf_counter, pages: Callable[[], int] | None = None
    ) -> None:
        self._read = read
        self._clock = clock
        self._pages = count_pages if pages is None else pages
        self._last = 0
        self._space = 0
        self._at = 0.0
        self._cost = 0.0
        self._previous = 0.0

    def read(self) -> int:
        """Read the counter anew."""
        began = self._clock()
        self._last = self._read()
        self._at = self._clock()
        cost = self._at - began
        self._cost = min(cost, self._previous)  # one reading alone may have been interrupted
        self._previous = cost
        if self._cost > DEAR_S:
            self._space = self._pages()
        return self._last

    def read_briefly(self) -> int:
        """The counter, as of now or of a moment ago."""
        if self._cost <= DEAR_S or self._clock() - self._at >= self._cost / SHARE:
            return self.read()
        return self._last if abs(self._pages() - self._space) <= STEP_PAGES else self.read()


def count_pages() -> int:
    """Pages of the process's address space (``/proc/self/statm``, proc(5)); 0 on systems without that file."""
    # Opened each time: after a fork a file that was kept open would tell of the parent.
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - 5 us less
        return int(file.read().split()[0])
    return 0
