"""The GNU C library's own count of its heap, asked without psutil: importing that takes 10 ms of each run's start."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


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

        ask = ctypes.CDLL(None).mallinfo2
    except (ImportError, AttributeError, OSError, TypeError):  # no such function; Windows has no library by that name
        return None

    class Mallinfo2(ctypes.Structure):
        # In the order of malloc.h.
        _fields_ = [
            (name, ctypes.c_size_t)
            for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks")
        ] + [("keepcost", ctypes.c_size_t)]

    ask.restype = Mallinfo2
    ask.argtypes = []
    return Mallinfo(ask)
