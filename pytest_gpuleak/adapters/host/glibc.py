"""Read the GNU C library's count of its heap without importing psutil."""

from __future__ import annotations

import os
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


_WORDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip

_SPARE = 22
"""Spare words behind the ten that glibc fills in: it writes to our memory, and a later version may write more."""


class Mallinfo:
    """Reads ``mallinfo2`` (glibc 2.33 and later).

    `free` and `chunks`: bytes that malloc had cached at the last reading, and the number of pieces they were in.
    """

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self.free: float = inf
        self.chunks = 0

    def read(self) -> int:
        """Return the bytes malloc has handed out, its own maps included (psutil's ``heap_used`` and ``mmap_used``)."""
        # Not kept: the collector tracks it, and would show it among what the test has left.
        info = self._ask()
        self.free, self.chunks = info.fordblks, info.ordblks + info.smblks
        return int(info.uordblks + info.hblkhd)


def mallinfo() -> Mallinfo | None:
    """Return a reader of the heap; None if the C library is not glibc or lacks ``mallinfo2``."""
    try:
        import ctypes

        if not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return None  # another library's structure may differ
        ask = ctypes.CDLL(None).mallinfo2
    except (ImportError, AttributeError, OSError, TypeError, ValueError):  # no such function, name or library
        return None

    class Mallinfo2(ctypes.Structure):
        # In the order of glibc's malloc.h.
        _fields_ = [*((name, ctypes.c_size_t) for name in _WORDS), ("spare", ctypes.c_size_t * _SPARE)]

    ask.restype = Mallinfo2
    ask.argtypes = []
    return Mallinfo(ask)
