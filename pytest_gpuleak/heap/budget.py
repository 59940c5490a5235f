"""Bound searches by what they meet, which is the same on each machine and under each load. Nothing here reads a clock."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final, TypeVar

from pytest_gpuleak.heap.long_work import WORK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_T = TypeVar("_T")

_TELL_EVERY: Final = 16_384
"""Steps between two times that work which takes long is asked to say so."""


class Budget:
    """The steps that a search may take: a step is an object or a reference that it meets, some 0.2 to 0.4 us.

    What costs more counts as several steps, and a pass of `gc` over the heap as a step for a few objects there. A search
    that has `spent` them stops with what it has, and says that it did not come to its end.

    Attributes:
        left: steps that may still be taken, below 0 where the last ones were more than that.
    """

    def __init__(self, steps: int, whole: Budget | None = None) -> None:
        self.left = steps
        self._wholes: tuple[Budget, ...] = () if whole is None else (whole, *whole._wholes)  # noqa: SLF001 - another of its own
        self._silent = 0

    def worked(self, steps: int) -> bool:
        """Count steps that were taken, and tell whether none is left."""
        self.left -= steps
        for whole in self._wholes:
            whole.left -= steps
        self._silent += steps
        if self._silent >= _TELL_EVERY:
            self._silent = 0
            WORK.tell_if_due()
        return self.left <= 0

    def affordable(self, items: Iterable[_T], steps: int) -> Iterator[_T]:
        """Return the items, each of which costs some steps, until none is left. It keeps no reference to an item."""
        return takewhile(lambda _: not self.worked(steps), items)

    @property
    def spent(self) -> bool:
        """Tell whether no step is left."""
        return self.left <= 0

    def part(self, steps: int) -> Budget:
        """Return a budget of `steps`, at most as many as are left here, whose steps count here too."""
        return Budget(max(0, min(steps, self.left)), self)
