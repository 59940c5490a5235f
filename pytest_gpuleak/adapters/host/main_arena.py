"""Tell in microseconds whether the main thread's part of malloc's heap can have grown since it was last looked at.

glibc's ``mallinfo2`` visits each free chunk of each arena: thousands that JAX's threads have freed, 60 us a reading. The
main thread takes its memory from the main arena: from free chunks below its top, from the top, or from new pages. How
much is free below the top is asked once (``malloc_info``); then malloc's own fields tell where the top begins, and what else
it has from the system. Where they are not found, the place that malloc would give to a large block tells the one, and the
address space the other.
"""

from __future__ import annotations

import re
import threading
from _thread import _count as count_threads
from _thread import get_ident
from contextlib import suppress
from mmap import PAGESIZE
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from pytest_gpuleak.adapters.host.glibc import Mallinfo
    from pytest_gpuleak.adapters.host.malloc_fields import MallocFields

    class Layout(Protocol):
        """Asks malloc about its main arena."""

        def place(self) -> int:
            """Return the address where `BLOCK` bytes would be now."""

        def below_top(self) -> tuple[int, int] | None:
            """Return the bytes that are free below the top, and the largest chunk among them; None if unknown."""

        def fields(self) -> MallocFields | None:
            """Return malloc's fields; None where they are not found."""


BLOCK: Final = 120 * 1024
"""Bytes of the block: less than malloc maps (128 KiB and more), and more than a chunk that is free below the top."""
NOTICED: Final = 240 * 1024
"""Growth that is noticed, in bytes: a little less than the smallest that is investigated where NumPy is imported."""
MOST_BELOW_TOP: Final = 128 * 1024
"""Bytes free below the top that can be filled unseen. With more, the counter itself must be read."""
ASKING_SHARE: Final = 0.01
"""Share of the time that asking for the free chunks may take."""
READINGS_PER_ASKING: Final = 4
"""What asking takes, in readings of the counter: 110 us and 27 us, once JAX is imported."""

MOST_PATIENCE: Final = 64
"""Factor by which it is asked less often, after it was asked in vain several times in a row."""

FIELDS_TRIES: Final = 4
"""How often malloc's fields are searched for, 2 ms each beside TensorFlow."""

_NOWHERE: Final = (0, 0)
_SIZES: Final = re.compile(rb' to="(\d+)"')
_FREE: Final = re.compile(rb'<total type="(?:fast|rest)" count="\d+" size="(\d+)"')
_ELSEWHERE: Final = 2 | 4
"""Bits of the word before a block (malloc.c): IS_MMAPPED, and NON_MAIN_ARENA."""
_MOST_TEXT: Final = 32 * 1024


class MainArena:
    """Tells what `layout` and the address space say about growth since the counter was last read.

    What other threads keep is not seen, nor small blocks that take the place of small blocks freed since.
    """

    def __init__(self, layout: Layout, clock: Callable[[], float] = perf_counter) -> None:
        self._layout = layout
        self._ask_place = layout.place
        self._clock = clock
        self._known = False
        self._fields: MallocFields | None = None
        self._has_hole = False
        self._counter = self._place = self._space = self._slack = self._moved = 0
        self._thread = self._threads = 0
        self._marked = _NOWHERE
        self._marked_thread = 0
        self._asked_at = clock()
        self._patience = 1

    def obtained(self) -> int | None:
        """Return the bytes that malloc has from the system; None where only the address space tells."""
        return None if self._fields is None else self._fields.obtained()

    def note(self, counter: int, reading_s: float, pages: Callable[[], int]) -> None:
        """Take a new value of the counter, whose reading took `reading_s`, as what `is_still` compares with.

        `pages` returns the size of the address space, or 0 where it is unknown: so is then whether anything is still.
        """
        if self._known and self._has_room(abs(counter - self._counter), pages):
            self._moved = abs(counter - self._counter)
            return
        self._known = False
        if get_ident() != threading.main_thread().ident:
            return  # another thread takes its memory from another arena
        now = self._clock()
        if now - self._asked_at < self._patience * reading_s * READINGS_PER_ASKING / ASKING_SHARE:
            return
        self._asked_at = now
        self._fields = self._layout.fields()
        free, largest = self._layout.below_top() or (NOTICED, 0)
        # Where the top is known by its field, malloc's place for a large block tells of the one hole that has room for it.
        self._has_hole = self._fields is not None and largest >= BLOCK
        if self._has_hole:
            free, largest = free - largest, 0
        self._slack = NOTICED - free
        self._counter, self._moved = counter, 0
        self._thread, self._threads = get_ident(), count_threads()
        self._place, self._space = self._look(pages)
        space_known = self._fields is not None or self._space > 0
        self._known = free <= MOST_BELOW_TOP and largest < BLOCK and space_known
        # Large free chunks are rarely filled soon.
        self._patience = 1 if self._known else min(2 * self._patience, MOST_PATIENCE)

    def mark_top(self) -> None:
        """Note where a large block would be placed, for `top_has_moved`."""
        self._marked_thread = get_ident()
        self._marked = self._places()

    def top_has_moved(self) -> bool:
        """Tell whether so large a block as is noticed may have been added since `mark_top`, whatever is free below the top.

        Thousands of free chunks, too small for it, can make nothing else known: an array takes the room that a larger one
        has left at the top, so that the address space does not change either.
        """
        if get_ident() != self._marked_thread:
            return False
        return any(abs(now - then) >= NOTICED for now, then in zip(self._places(), self._marked, strict=True))

    def is_still(self, pages: Callable[[], int]) -> bool:
        """Return whether less than `NOTICED` bytes can have been added since the counter was last read."""
        self._known = self._known and self._has_room(self._moved, pages)
        return self._known

    def _has_room(self, moved: int, pages: Callable[[], int]) -> bool:
        if get_ident() != self._thread or count_threads() != self._threads:
            return False
        place, space = self._look(pages)
        return moved + abs(place - self._place) + abs(space - self._space) < self._slack

    def _look(self, pages: Callable[[], int]) -> tuple[int, int]:
        """Return where the next blocks would be placed, and the bytes that are from the system."""
        fields = self._fields
        if fields is None:
            return self._ask_place(), pages() * PAGESIZE
        return fields.top() + (self._ask_place() if self._has_hole else 0), fields.elsewhere()

    def _places(self) -> tuple[int, int]:
        return (0 if self._fields is None else self._fields.top()), self._ask_place()


class GlibcLayout:
    """Asks glibc, whose ``mallinfo2`` is `heap`. Raises AttributeError or OSError where the C library lacks a function."""

    def __init__(self, heap: Mallinfo) -> None:
        import ctypes

        # It holds the interpreter's lock: these calls take a fraction of a microsecond.
        library = ctypes.PyDLL(None)
        self._library, self._heap = library, heap
        self._fields: MallocFields | None = None
        self._tries = FIELDS_TRIES
        self._malloc: Any = library["malloc"]
        self._free: Any = library["free"]
        self._malloc.restype, self._malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        self._free.restype, self._free.argtypes = None, [ctypes.c_void_p]
        self._open: Any = library["fmemopen"]
        self._close: Any = library["fclose"]
        self._info: Any = library["malloc_info"]
        self._open.restype, self._open.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
        self._close.argtypes = [ctypes.c_void_p]
        self._info.argtypes = [ctypes.c_int, ctypes.c_void_p]
        self._word, self._word_size = ctypes.c_size_t, ctypes.sizeof(ctypes.c_size_t)
        self._text = ctypes.create_string_buffer(_MOST_TEXT)

    def place(self) -> int:
        """Return the address where `BLOCK` bytes would be now; 0 if there is no memory."""
        found = self._malloc(BLOCK)
        self._free(found)
        return found or 0

    def below_top(self) -> tuple[int, int] | None:
        """Return the bytes that are free below the top, and the largest chunk among them."""
        if not self._is_own(self._malloc(BLOCK)):
            return None
        if self._heap.top <= BLOCK:
            self._heap.read()  # the block has made the top larger
        stream = self._open(self._text, _MOST_TEXT, b"w")
        if not stream:
            return None
        self._info(0, stream)
        self._close(stream)
        return parse_main_arena(self._text.raw, self._heap.top)

    def fields(self) -> MallocFields | None:
        """Return malloc's fields. They are searched for a few times: other threads may allocate during the search."""
        if self._fields is None and self._tries:
            self._tries -= 1
            with suppress(OSError, AttributeError):
                from pytest_gpuleak.adapters.host.malloc_fields import find_fields

                self._fields = find_fields(self._library, self._heap.ask)
            self._heap.read()  # the search has moved the top
        return self._fields

    def _is_own(self, block: int | None) -> bool:
        """Free the block, and tell whether it was part of the main arena: malloc may be told to map so large a block."""
        if not block:
            return False
        head = self._word.from_address(block - self._word_size).value
        self._free(block)
        return not head & _ELSEWHERE


def parse_main_arena(text: bytes, top: int) -> tuple[int, int] | None:
    """Read what ``malloc_info`` writes: the main arena comes first, and `top` bytes of it are its top."""
    arena, end, _ = text.partition(b"</heap>")
    free = [int(size) for size in _FREE.findall(arena)]
    if not end or not free:
        return None
    return max(sum(free) - top, 0), max(map(int, _SIZES.findall(arena)), default=0)
