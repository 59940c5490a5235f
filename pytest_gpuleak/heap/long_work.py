"""Tell that work takes long from within it: a search asks every so many steps (`budget.Budget`).

This alone of the heap's modules reads a clock, for what is shown. Nothing depends on it.
"""

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

    def tell_if_due(self) -> None:
        """Call `tell` with the seconds so far, if it was not called for a while."""
        if self.tell is None:
            return
        now = perf_counter()
        if now >= self.due:
            self.due = now + TELL_EVERY_S
            self.tell(now - self.began)


WORK: Final = _Work()


@contextlib.contextmanager
def telling(tell: Callable[[float], object] | None) -> Iterator[None]:
    """Have `tell`, if any, called with the seconds so far, once a second, when the body takes longer than `LONG_WORK_S`."""
    WORK.tell, WORK.began = tell, perf_counter()
    WORK.due = WORK.began + LONG_WORK_S
    try:
        yield
    finally:
        WORK.tell, WORK.due = None, inf
