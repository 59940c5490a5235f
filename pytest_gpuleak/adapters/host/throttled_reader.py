"""Read a counter less often once reading it takes long."""

from __future__ import annotations

import os
from math import inf
from mmap import PAGESIZE
from time import perf_counter
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.registry import have_added_arrays

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.adapters.host.main_arena import MainArena

ALWAYS_READ_BELOW_S = 10e-6
"""A reading cheaper than this, in seconds, is always repeated."""
SHARE = 0.005
"""Share of the time between two readings that an expensive reading may take."""
TIME_SHARE_IDLE = 0.001
"""The same share when little can have changed."""
NEGLIGIBLE = 768 * 1024
"""Growth that may go unnoticed, in bytes. With `STEP_PAGES` this adds up to 1 MiB, the smallest growth investigated."""
WATCHFUL_S = 0.02
"""Seconds that expensive readings may take in a row after a new array, where growth from 256 KiB on is investigated.

They return as `WATCHFUL_SHARE` of the time: where tests take longer than a reading, each is read after.
"""
UNCHANGED_S = 0.0005
"""The same where no array was added: only arrays that replaced smaller ones can explain growth then."""
UNCHANGED_SHARE = 0.0025
"""The share of the time as which that returns."""
WATCHFUL_SHARE = 0.01
WATCHFUL_NEGLIGIBLE = 128 * 1024
"""`NEGLIGIBLE` in such a process."""
MOVED_S = 0.05
"""The same, beyond all others, because the top of the main thread's heap has moved."""
STEP_PAGES = 64
"""Change of the address space that causes no new reading, in pages: 256 KiB with pages of 4 KiB."""
GROWN_S = 0.25
"""Seconds that expensive readings may take in a row because the address space has changed.

Beside JAX and TensorFlow, where a reading takes 1 to 2 ms and nearly every test of some suites compiles, readings took
4 % of the run.
"""
GROWN_SHARE = 0.005
"""The share of the time as which that returns."""
MANY_PAGES = 16 * STEP_PAGES
"""Change of the address space after which the counter is always read, in pages: 4 MiB with pages of 4 KiB."""

_ERRORS = (OSError, ValueError, IndexError, AttributeError)


class Allowance:
    """Seconds that may be spent: `most_s` in a row, which return as a `share` of the time."""

    def __init__(self, most_s: float, share: float, now: float) -> None:
        self._most_s = self._left_s = most_s
        self._share = share
        self._at = now

    def spend(self, cost_s: float, now: float) -> bool:
        """Spend `cost_s` and return True, unless all is spent."""
        self._left_s = min(self._most_s, self._left_s + self._share * (now - self._at))
        self._at = now
        if self._left_s <= 0:
            return False
        self._left_s -= cost_s
        return True


class ThrottledReader:
    """Reads a counter, or returns its last value if reading is expensive and little can have changed.

    glibc's ``mallinfo2`` walks every free chunk. It is read again when the address space has changed, as with growth
    that fits into no free chunk, and otherwise as often as `SHARE` of the time allows. `room`: bytes by which the
    counter could grow within the same `pages` of address space; `watchful`: whether growth is investigated from a
    quarter of a MiB on; `arrays`: numbers of which one rises with each array that is added then, empty if unknown;
    `arena`: tells whether the main thread's heap can have grown as much.
    """

    def __init__(
        self,
        read: Callable[[], int],
        room: Callable[[], float] = lambda: inf,
        clock: Callable[[], float] = perf_counter,
        pages: Callable[[], int] | None = None,
        watchful: Callable[[], bool] = bool,
        arrays: Callable[[], list[int]] = list,
        arena: MainArena | None = None,
    ) -> None:
        self._read = read
        self._room = room
        self._clock = clock
        self._watchful = watchful
        self._count_arrays = arrays
        self._arrays: list[int] = []
        self._space_of = AddressSpace()
        self._ask_pages = self._space_of.pages if pages is None else pages
        self._arena = arena
        self._last = 0
        self._space = 0
        self._at = 0.0
        self._cost = 0.0
        self._previous = 0.0
        now = clock()
        self._for_unchanged = Allowance(UNCHANGED_S, UNCHANGED_SHARE, now)
        self._for_new_arrays = Allowance(WATCHFUL_S, WATCHFUL_SHARE, now)
        self._for_moves = Allowance(MOVED_S, WATCHFUL_SHARE, now)
        self._for_space = Allowance(GROWN_S, GROWN_SHARE, now)
        self.fresh = True
        """Whether the last value is the counter's at that time, but for what is negligible."""

    def read(self) -> int:
        """Read the counter."""
        began = self._clock()
        self.fresh = True
        self._last = self._read()
        self._at = self._clock()
        cost = self._at - began
        self._cost = min(cost, self._previous)  # a single reading may have been interrupted
        self._previous = cost
        if self._cost > ALWAYS_READ_BELOW_S:
            if self._arena is not None and self._watchful():
                self._arena.mark_top()
                self._arena.note(self._last, self._cost, self._ask_pages)
                self._arrays = self._count_arrays()
            self._space = self._pages()
        return self._last

    def _pages(self) -> int:
        obtained = None if self._arena is None else self._arena.obtained()
        return self._ask_pages() if obtained is None else obtained // PAGESIZE

    def close(self) -> None:
        """Close the file of the address space. Reading opens it again."""
        self._space_of.close()

    def read_briefly(self) -> int:
        """Return the counter, or its last value if reading is expensive and little can have changed."""
        if self._cost <= ALWAYS_READ_BELOW_S:
            return self.read()
        watchful = self._watchful()
        if watchful:
            now = self._clock()
            is_due = now - self._at >= self._cost / WATCHFUL_SHARE
            if not is_due and self._arena is not None and self._arena.is_still(self._ask_pages):
                self.fresh = True
                return self._last
            if self._for_unchanged.spend(self._cost, now):
                return self.read()
            may_have_added = have_added_arrays(self._arrays, self._count_arrays()) is not False
            if may_have_added and self._for_new_arrays.spend(self._cost, now):
                return self.read()
        negligible = WATCHFUL_NEGLIGIBLE if watchful else NEGLIGIBLE
        idle = self._space and self._room() < negligible
        share = TIME_SHARE_IDLE if idle else SHARE
        if self._clock() - self._at >= self._cost / share:
            return self.read()
        changed = abs(self._pages() - self._space)
        if self._is_worth_a_reading(changed) or (watchful and self._top_has_moved()):
            return self.read()
        self.fresh = bool(idle) and changed <= STEP_PAGES
        return self._last

    def _is_worth_a_reading(self, changed: int) -> bool:
        if changed > MANY_PAGES:
            return True
        return changed > STEP_PAGES and self._for_space.spend(self._cost, self._clock())

    def _top_has_moved(self) -> bool:
        has_moved = self._arena is not None and self._arena.top_has_moved()
        return has_moved and self._for_moves.spend(self._cost, self._clock())


class AddressSpace:
    """The size of the process's private writable memory, read from a file that is kept open.

    ``data`` of ``/proc/self/statm`` (proc(5)) alone shows the arenas of threads. The whole size where it is 0 (gVisor).
    """

    def __init__(self) -> None:
        self._file = -1
        self._process = 0
        self._identity: os.stat_result | None = None

    def pages(self) -> int:
        """Return the size in pages; 0 on systems without that file."""
        # After a fork the open file would describe the parent.
        if self._file >= 0 and os.getpid() == self._process:
            try:
                return self._read()
            except _ERRORS:
                pass  # a test may have closed our file, and its number may belong to another file
        self._identity = None
        try:
            self._file = os.open("/proc/self/statm", os.O_RDONLY)
            self._identity, self._process = os.fstat(self._file), os.getpid()
            return self._read()
        except _ERRORS:  # Windows has no `os.pread`
            return 0

    def _read(self) -> int:
        # "size resident shared text lib data dt": the last is always 0.
        before, data, _ = os.pread(self._file, 100, 0).rsplit(None, 2)
        return int(data) or int(before.split(None, 1)[0])

    def close(self) -> None:
        """Close the file, unless other code has closed it and its number belongs to another file by now."""
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
