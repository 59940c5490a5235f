"""Read, in microseconds, how much memory a process has of its own, and what it has had of the processors."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.heap.threads import read_kernel_file, read_stat

if TYPE_CHECKING:
    from psutil import Process


_PAGE: Final = mmap.PAGESIZE


def own_bytes(process: Process, *, is_certain: bool) -> int | None:
    """Return a process's anonymous bytes; None if it has ended or cannot be read.

    Where the system does not tell them (macOS, Windows), those that are private to it, else its resident set. Unless
    `is_certain`, the process is held to its start first: its pid may be another's by now.
    """
    try:
        if not is_certain and not process.is_running():
            return None
        fields = read_kernel_file(f"/proc/{process.pid}/statm").split()
        # A file's pages and shared memory come and go with what others do. A zombie has 0 pages.
        return max(0, int(fields[1]) - int(fields[2])) * _PAGE or None
    except FileNotFoundError:
        return _by_psutil(process)
    except (OSError, ValueError, IndexError):
        return None


def _by_psutil(process: Process) -> int | None:
    """Read it where there is no ``/proc``; on Linux the process has ended."""
    try:
        memory: Any = process.memory_info()
        return int(getattr(memory, "private", memory.rss)) or None
    except Exception:  # noqa: BLE001 - psutil's errors: it has ended, or is another user's
        return None


_WANTS: Final = (b"R", b"D")
"""States of a thread that runs, or would if it had a processor, or its memory had been read from the disk."""


class ProcessUse(NamedTuple):
    """What a process had run when it was read, in seconds, and whether it `wants` to go on: it is neither stopped nor asleep."""

    ran_s: float = 0.0
    wants: bool = False

    def own_seconds(self, before: ProcessUse, passed_s: float) -> float:
        """Return how many of the seconds passed since `before` were the process's own: it ran, or wanted nothing.

        Load makes none pass for a process that wants to run. One that other code of its own keeps busy, that sleeps or that
        is stopped has all of them.
        """
        return min(passed_s, self.ran_s - before.ran_s) if self.wants else passed_s


def read_use(pid: int) -> ProcessUse:
    """Read it of all of a process's threads. Where the system does not tell, it wants nothing: all time is its own."""
    try:
        fields = read_stat(pid)
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - as short as it gets
        ran = int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return ProcessUse()
    return ProcessUse(ran / os.sysconf("SC_CLK_TCK"), any(_wants(pid, thread) for thread in threads))


def _wants(pid: int, thread: str) -> bool:
    try:
        return read_stat(pid, thread)[0] in _WANTS
    except (OSError, IndexError):  # it has ended meanwhile
        return False
