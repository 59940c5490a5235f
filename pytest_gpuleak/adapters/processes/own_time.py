"""Measure a process's own time, which other processes' load does not make pass."""

from __future__ import annotations

import os
from time import perf_counter
from typing import Final

from pytest_gpuleak.heap.threads import read_stat

_WANTS: Final = (b"R", b"D")
"""States of a thread that runs, or would if it had a processor, or its memory had been read from the disk."""


def is_hindered(states: list[bytes]) -> bool:
    """Tell by its threads' states whether a process goes on only as the machine lets it. One that is stopped or sleeps wants nothing."""
    return any(state in _WANTS for state in states)


def own_seconds(passed_s: float, used_s: float, *, hindered: bool) -> float:
    """Return how many of the seconds that have passed a process has had for itself: those that it ran, or wanted nothing."""
    return min(passed_s, used_s) if hindered else passed_s


class OwnTime:
    """The time that a process has had since the first look at it. By the clock where the system does not tell more."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._at = perf_counter()
        self._used_s = _read_used(pid)
        self.seconds = 0.0

    def look(self) -> None:
        """Add what it has had since the last look, to be called often: what it wants is known for this moment alone."""
        before, used_before = self._at, self._used_s
        hindered = is_hindered(_read_states(self._pid))
        self._at, self._used_s = perf_counter(), _read_used(self._pid)
        self.seconds += own_seconds(self._at - before, self._used_s - used_before, hindered=hindered)


def _read_used(pid: int) -> float:
    """Return the seconds that all threads of a process have run; 0 if that cannot be read."""
    try:
        fields = read_stat(pid)
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _read_states(pid: int) -> list[bytes]:
    """Return the states of a process's threads; none if they cannot be read."""
    states: list[bytes] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - as short as it gets
            states += read_stat(pid, thread)[:1]
    except OSError:  # a thread that has ended meanwhile; the others count at the next look
        pass
    return states
