"""How long processes are waited for: by the time that each has had for itself, so that no verdict depends on the machine's load."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.processes.usage import ProcessUse, read_use

if TYPE_CHECKING:
    from collections.abc import Iterable

LOOK_S: Final = 0.05
"""Seconds between two looks at processes that do not answer."""

HINDERED_S: Final = 60.0
"""Seconds more, by the clock, that a process is waited for which the machine keeps from running."""


class Patience:
    """Waits for each of some processes `seconds` of its own (`ProcessUse.own_seconds`)."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds - LOOK_S  # who answers before the first look is not looked at
        self._looked = perf_counter()
        self._until = self._looked + seconds + HINDERED_S
        self._known: dict[int, tuple[ProcessUse, float]] = {}
        """What each process had used at the last look, and how long it was waited for by then."""

    def spent_on(self, pids: Iterable[int]) -> set[int]:
        """Return those of the processes that are waited for no longer, at each look; in between none."""
        now = perf_counter()
        passed_s = now - self._looked
        if passed_s < LOOK_S:
            return set()
        self._looked = now
        spent: set[int] = set()
        for pid in set(pids):
            use = read_use(pid)
            before, waited_s = self._known.get(pid, (None, 0.0))
            if before is not None:
                waited_s += use.own_seconds(before, passed_s)
            self._known[pid] = use, waited_s
            if waited_s >= self._seconds or now >= self._until:
                spent.add(pid)
        return spent
