"""Reading a counter less often once reading it takes long."""

from __future__ import annotations

import os
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ALWAYS_READ_BELOW_S = 10e-6
"""Seconds that a reading may take without more ado."""
SHARE = 0.005
"""Of the time between two readings, what a dear one may take."""
TIME_SHARE_IDLE = 0.001
"""The same where next to nothing can have been missed."""
NEGLIGIBLE = 768 * 1024
"""Bytes that may be missed: with `STEP_PAGES` a MiB, from which on growth is looked into at all."""
STEP_PAGES = 64
"""Pages by which the process's address space may change without a new reading: 256 KiB where a page has 4 KiB."""

_ERRORS = (OSError, ValueError, IndexError, AttributeError)


class ThrottledReader:
    """Reads a counter anew, or says what it read last, where a reading is dear and nothing seems to have changed.

    glibc's ``mallinfo2`` walks every free chunk (`int_mallinfo`, malloc/malloc.c), and a session leaves some three a
    test: 1 us at its start, 60 after 1,000 trivial tests. A dear counter is read anew when the
    process's address space has changed, which growth of many MiB brings about unless it fits into holes, and else as
    often as `SHARE` of the time allows. Where the holes have no room nothing is missed meanwhile.

    Args:
        read: reads the counter.
        room: bytes by which the counter could grow, as of its last reading, without a change of the address space.
        clock: seconds, from anywhere.
        pages: the process's address space, in pages; 0 where it cannot be told.
    """

    def __init__(
        self,
        read: Callable[[], int],
        room: Callable[[], float] = lambda: inf,
        clock: Callable[[], float] = perf_counter,
        pages: Callable[[], int] | None = None,
    ) -> None:
        self._read = read
        self._room = room
        self._clock = clock
        self._space_of = AddressSpace()
        self._pages = self._space_of.pages if pages is None else pages
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
        if self._cost > ALWAYS_READ_BELOW_S:
            self._space = self._pages()
        return self._last

    def close(self) -> None:
        """Let go of what is kept open. Reading opens it again."""
        self._space_of.close()

    def read_briefly(self) -> int:
        """The counter, as of now or of a moment ago."""
        if self._cost <= ALWAYS_READ_BELOW_S:
            return self.read()
        share = TIME_SHARE_IDLE if self._space and self._room() < NEGLIGIBLE else SHARE
        if self._clock() - self._at >= self._cost / share:
            return self.read()
        return self._last if abs(self._pages() - self._space) <= STEP_PAGES else self.read()


class AddressSpace:
    """The size of what the process can write to and shares with nobody, read in 3 us from a file kept open.

    By ``data`` of ``/proc/self/statm`` (proc(5)): an arena of malloc's beside the main one, as each thread has, grows in
    addresses that were reserved before, and shows there alone. Where that is not told (gVisor), the whole size.
    """

    def __init__(self) -> None:
        self._file = -1
        self._process = 0
        self._identity: os.stat_result | None = None

    def pages(self) -> int:
        """Its pages; 0 on systems without that file."""
        # After a fork the file would tell of the parent.
        if self._file >= 0 and os.getpid() == self._process:
            try:
                return self._read()
            except _ERRORS:
                pass  # a test may close what it did not open: another file may have the number
        self._identity = None
        try:
            self._file = os.open("/proc/self/statm", os.O_RDONLY)
            self._identity, self._process = os.fstat(self._file), os.getpid()
            return self._read()
        except _ERRORS:  # Windows has no `os.pread`
            return 0

    def _read(self) -> int:
        fields = os.pread(self._file, 100, 0).split(None, 6)
        return int(fields[5]) or int(fields[0])

    def close(self) -> None:
        """Close the file, unless somebody else has, and its number is another file's by now."""
        if self._is_open():
            os.close(self._file)
        self._identity, self._file = None, -1

    def _is_open(self) -> bool:
        if self._identity is None:
            return False
        try:
            return os.path.samestat(self._identity, os.fstat(self._file))
        except OSError:
            return False
