"""The GNU C library's own count of its heap, asked without psutil: importing that takes 10 ms of each run's start."""

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
"""Words behind the ten that glibc fills in: the function writes to our memory, and a later one may write more."""


class Mallinfo:
    """The heap as ``mallinfo2`` tells it (glibc 2.33 and later).

    Args:
        ask: the C library's function.

    Attributes:
        free: bytes that malloc had in hand when it was last asked.
    """

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self.free: float = inf

    def read(self) -> int:
        """The bytes malloc has handed out, memory maps of its own included.

        The same figures as `psutil.heap_info`'s ``heap_used`` and ``mmap_used``.
        """
        info = self._ask()
        self.free = info.fordblks
        return int(info.uordblks + info.hblkhd)


def mallinfo() -> Mallinfo | None:
    """The heap, where the C library is one that tells it; None elsewhere."""
    try:
        import ctypes

        if not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return None  # another library's structure may be another one
        ask = ctypes.CDLL(None).mallinfo2
    except (ImportError, AttributeError, OSError, TypeError, ValueError):  # no such function, name or library
        return None

    class Mallinfo2(ctypes.Structure):
        # In the order of malloc.h.
        _fields_ = [
            *((name, ctypes.c_size_t) for name in _WORDS),
            ("spare", ctypes.c_size_t * _SPARE),
        ]

    ask.restype = Mallinfo2
    ask.argtypes = []
    return Mallinfo(ask)
