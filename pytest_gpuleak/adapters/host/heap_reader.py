"""Read malloc's count, glibc's without importing psutil, or leave a reading out where it cannot have grown by as much as matters.

glibc's ``mallinfo2`` visits each free chunk of each arena: 1 us with a hundred of them, 75 us with three thousand, 0.4 ms
with ten thousand (2 cores, Python 3.11), and trivial tests leave three more each. What malloc had free and what the
process has got from the system since bound the growth, and cost 2 us.
"""

from __future__ import annotations

import os
from math import inf
from mmap import PAGESIZE
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.host.descriptors import out_of_the_way
from pytest_gpuleak.heap.collector_rules import is_free_threaded
from pytest_gpuleak.model.readings import ProbeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable


if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class HeapReader(Protocol):
        """Reads the heap; `free` and `chunks` are malloc's at the last reading: cached bytes, infinite if unknown."""

        @property
        def free(self) -> float: ...  # noqa: D102
        @property
        def chunks(self) -> int: ...  # noqa: D102
        def read(self) -> int: ...  # noqa: D102


FEW_CHUNKS: Final = 256
"""Free chunks up to which the count is always read: visiting them takes no longer than to ask for the address space."""

_TRIAL: Final = 256 * 1024
_TRIALS: Final = 3
_ERRORS: Final = (OSError, ValueError, IndexError, AttributeError)


def heap_reader() -> HeapReader:
    """Return a reader of malloc's bytes. Raises ProbeUnavailable without a figure (musl) or with another malloc."""
    reader = mallinfo() or _PsutilHeap()
    if not any(_sees_trial(reader.read) for _ in range(_TRIALS)):
        why = "free-threaded Python has its own" if is_free_threaded() else "another malloc is preloaded"
        raise ProbeUnavailable(f"the C library does not count this process's heap ({why})")
    return reader


class BoundedReader:
    """Reads `heap`, or returns its last reading where it cannot have grown since by as much as matters.

    The count can have grown by what malloc had free at the last reading, and by the memory that the process has got from
    the system since. What the system has taken back meanwhile is not seen: the next reading shows growth that it hid.
    `pages` returns the size of the address space in pages, 0 if unknown; only tests replace it.
    """

    def __init__(self, heap: HeapReader, pages: Callable[[], int] | None = None) -> None:
        self._heap = heap
        self._space = AddressSpace()
        self._pages = self._space.pages if pages is None else pages
        self._last = 0
        self._pages_then = 0

    def read(self) -> int:
        """Read the count."""
        self._last = self._heap.read()
        if self._heap.chunks > FEW_CHUNKS:
            self._pages_then = self._pages()
        return self._last

    def read_briefly(self, least: Callable[[], int]) -> int:
        """Return the count, or the last reading if it cannot have grown by `least` bytes since.

        `least` is asked only where a reading takes long.
        """
        if self._heap.chunks <= FEW_CHUNKS or not self._pages_then:
            return self.read()
        obtained = abs(self._pages() - self._pages_then) * PAGESIZE
        if self._heap.free + obtained >= least():
            return self.read()
        return self._last

    def close(self) -> None:
        """Close the file of the address space. Reading opens it again."""
        self._space.close()


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
            self._file = out_of_the_way(os.open("/proc/self/statm", os.O_RDONLY))
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


class _PsutilHeap:
    free = inf
    chunks = 0

    def __init__(self) -> None:
        from pytest_gpuleak.adapters.dependencies import import_dependency  # only where glibc's reader is missing

        psutil = import_dependency("psutil", required=True)
        self._ask = getattr(psutil, "heap_info", None)
        if self._ask is None:
            raise ProbeUnavailable("psutil has no heap_info on this platform")
        try:
            self.read()
        except (OSError, RuntimeError, psutil.Error) as error:
            raise ProbeUnavailable(f"psutil.heap_info failed: {type(error).__name__}") from error

    def read(self) -> int:
        info = self._ask()  # type: ignore[misc] # __init__ has refused None
        return int(info.heap_used + info.mmap_used)


def _sees_trial(read: Callable[[], int]) -> bool:
    """Return whether an allocation moves the counter, which does not move where jemalloc or the like is in use."""
    before = read()
    block = bytearray(_TRIAL)
    grown = read() - before
    del block
    return grown >= _TRIAL // 2  # another thread may free at the same time


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
