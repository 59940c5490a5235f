"""Read what a process has had of the machine's processors, and whether it wants more."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from pytest_gpuleak.heap.threads import read_stat

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
