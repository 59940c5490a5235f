"""Read how much memory another process has of its own, in microseconds."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.heap.threads import read_kernel_file

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
