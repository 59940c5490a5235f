"""Tell that work takes long from within it: a search reads the clock at each level anyway (`referrers.Deadline`)."""

from __future__ import annotations

import contextlib
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONG_WORK_S: Final = 2.0
"""Seconds from which work is told of."""

TELL_EVERY_S: Final = 1.0
"""Seconds between two times that it is told."""


class _Work:
    """The work under way. At `due` (`perf_counter`) it is told; without work, never."""

    due = inf
    _began = 0.0
    _tell: Callable[[float], object] | None = None

    def begin(self, tell: Callable[[float], object]) -> None:
        self._tell, self._began = tell, perf_counter()
        self.due = self._began + LONG_WORK_S

    def end(self) -> None:
        self.due, self._tell = inf, None

    def note(self, now: float) -> None:
        self.due = now + TELL_EVERY_S
        if self._tell is not None:
            self._tell(now - self._began)


WORK: Final = _Work()


@contextlib.contextmanager
def telling(tell: Callable[[float], object] | None) -> Iterator[None]:
    """Have `tell`, if any, called with the seconds so far, once a second, when the body takes longer than `LONG_WORK_S`."""
    if tell is not None:
        WORK.begin(tell)
    try:
        yield
    finally:
        WORK.end()
