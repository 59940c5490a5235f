"""Read what glibc's malloc knows of itself in a tenth of a microsecond, without a call of malloc or of the system.

``mallinfo2`` visits each free chunk, asking malloc for a block sorts those that were freed since, and to read the address
space is a call of the system: 10 us and more with cold caches. The fields that tell of growth are variables of the C
library: ``main_arena.top``, ``mp_.mmapped_mem`` and each arena's ``system_mem`` (glibc's malloc/malloc.c and
malloc/arena.c, laid out like this since 2.27). Their addresses are not exported: they are found by their values, which
``mallinfo2`` tells, in the library's own writable pages. Where not all of them are as it tells, none is used.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAPS: Final = Path("/proc/self/maps")

_WRITABLE: Final = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) rw-p [0-9a-f]+ \S+ \d+ *(.*)$")
_LIBRARY: Final = re.compile(rb"/libc(-[\d.]+)?\.so[^/]*$")

_BUFFER: Final = 4096
_WORD: Final = 8
_SIZE: Final = ~7
"""The bits of a chunk's size that are no flags."""
_ARENA_TO_TOP: Final = 96
_ARENA_TO_NEXT: Final = _ARENA_TO_TOP + 2 * _WORD + 254 * _WORD + 16
"""After ``top``: last_remainder, bins and binmap."""
_ARENA_TO_SYSTEM: Final = _ARENA_TO_NEXT + 3 * _WORD
_NUMBER: Final = 4
_MOST_MAPS: Final = 65536
"""``n_mmaps_max``, unless the user has set it (DEFAULT_MMAP_MAX)."""
_MOST_ARENAS: Final = 4096
_MOST_GROWN: Final = 64 * 1024 * 1024
"""By how many bytes the heap may have grown since the maps were read."""


class Told(Protocol):
    """What ``mallinfo2`` tells, in bytes but for the number of maps."""

    arena: int
    hblks: int
    hblkhd: int


class MallocFields:
    """The fields of this process. `main` and `mapped` are the addresses of ``main_arena`` and ``mp_.mmapped_mem``.

    Arenas are only ever added, and their memory is never returned, so that their addresses stay valid.
    """

    def __init__(self, main: int, mapped: int) -> None:
        self._main = main
        self._top = _word(main + _ARENA_TO_TOP)
        self._of_main = _word(main + _ARENA_TO_SYSTEM)
        self._mapped = _word(mapped)
        self._newest = _word(main + _ARENA_TO_NEXT)
        self._known = main
        self._others: list[Any] = []

    def top(self) -> int:
        """Return the address where the top of the main arena begins."""
        return int(self._top.value)

    def elsewhere(self) -> int:
        """Return the bytes that malloc has from the system beside the main arena: in maps, and in arenas of threads."""
        if self._newest.value != self._known:
            self._known = self._newest.value
            self._others = [_word(arena + _ARENA_TO_SYSTEM) for arena in self.arenas()]
        size: int = self._mapped.value
        for other in self._others:
            size += other.value
        return size

    def obtained(self) -> int:
        """Return the bytes that malloc has from the system."""
        return int(self._of_main.value) + self.elsewhere()

    def arenas(self) -> Iterator[int]:
        """Yield the addresses of the arenas of threads."""
        arena = self._newest.value
        for _ in range(_MOST_ARENAS):
            if arena == self._main:
                return
            yield arena
            arena = _word(arena + _ARENA_TO_NEXT).value


def find_fields(library: Any, ask: Callable[[], Told]) -> MallocFields | None:
    """Return the fields of this process; None where they are not where they are expected.

    `library` is the C library, `ask` calls its ``mallinfo2``. Raises OSError without `MAPS`.
    """
    if struct.calcsize("P") != _WORD:
        return None
    # By lines: freed, the text of all would be a hole below the top, in which growth does not show.
    with MAPS.open("rb", buffering=_BUFFER) as file:
        lines = filter(None, map(_WRITABLE.match, file))
        spans = [(range(int(line[1], 16), int(line[2], 16)), line[3]) for line in lines]
    pages = [(span.start, _copy(span)) for span, name in spans if _LIBRARY.search(name)]
    # The top is in the last part, if some pages are protected. It may have grown since the maps were read.
    heap = max((span for span, name in spans if name == b"[heap]"), key=lambda span: span.start, default=range(0))
    told, end = ask(), _end_of_heap(library)
    if not 0 <= end - heap.stop <= _MOST_GROWN:
        return None
    heap = range(heap.start, end)
    tops = [start + offset for start, data in pages for offset in _tops(data, heap)]
    maps = [start + offset for start, data in pages for offset in _maps(data, told)]
    if len(tops) != 1 or len(maps) != 1:
        return None
    main = tops[0] - _ARENA_TO_TOP
    if not _is_ring(main, [span for span, _ in spans]):
        return None
    fields = MallocFields(main, maps[0])
    return fields if fields.obtained() == told.arena + told.hblkhd else None


def _end_of_heap(library: Any) -> int:
    from ctypes import c_ssize_t, c_void_p

    sbrk = library["sbrk"]
    sbrk.restype, sbrk.argtypes = c_void_p, [c_ssize_t]
    return int(sbrk(0) or 0)


def _tops(data: bytes, heap: range) -> Iterator[int]:
    """Yield the offsets of the words that refer to the last chunk of the heap: it is the top."""
    for index, (chunk,) in enumerate(struct.iter_unpack("N", data)):
        is_chunk = chunk in heap[: -2 * _WORD] and chunk % (2 * _WORD) == 0
        if is_chunk and chunk + (_word(chunk + _WORD).value & _SIZE) == heap.stop:
            yield index * _WORD


def _maps(data: bytes, told: Told) -> Iterator[int]:
    """Yield the offsets of ``mmapped_mem``: the count of maps comes before it, with its limit and two more numbers."""
    counts = struct.pack("ii", told.hblks, _MOST_MAPS)
    offset = data.find(counts)
    while offset >= 0:
        mapped_at = (offset + 4 * _NUMBER + _WORD - 1) // _WORD * _WORD
        if data[mapped_at : mapped_at + _WORD] == struct.pack("N", told.hblkhd):
            yield mapped_at
        offset = data.find(counts, offset + 1)


def _is_ring(main: int, writable: list[range]) -> bool:
    """Tell whether one arena refers to the next, and the last to the first, and all are memory of this process."""
    arena = main
    for _ in range(_MOST_ARENAS):
        if not any(arena in span and arena + _ARENA_TO_SYSTEM + _WORD <= span.stop for span in writable):
            return False
        arena = _word(arena + _ARENA_TO_NEXT).value
        if arena == main:
            return True
    return False


def _word(address: int) -> Any:
    from ctypes import c_size_t  # the caller has imported ctypes; a run that needs none does not pay for it

    return c_size_t.from_address(address)


def _copy(span: range) -> bytes:
    from ctypes import string_at

    return string_at(span.start, len(span))
