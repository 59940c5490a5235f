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
    due = inf
    began = 0.0
    tell: Callable[[float], object] | None = None

    def note(self, now: float) -> None:
        self.due = now + TELL_EVERY_S
        if self.tell is not None:
            self.tell(now - self.began)


WORK: Final = _Work()


@contextlib.contextmanager
def telling(tell: Callable[[float], object] | None) -> Iterator[None]:
    """Have `tell`, if any, called with the seconds so far, once a second, when the body takes longer than `LONG_WORK_S`."""
    WORK.tell, WORK.began = tell, perf_counter()
    WORK.due = inf if tell is None else WORK.began + LONG_WORK_S
    try:
        yield
    finally:
        WORK.tell, WORK.due = None, inf
