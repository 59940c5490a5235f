"""Choose among all arrays on the heap those that explain by their sizes what one run has added."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.heap.referrers import PausedCollector

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_gpuleak.explain.untracked_arrays import HeapArrays

SLACK_SHARE: Final = 16
"""Tolerance (1/16): arrays may exceed the growth by this part, because something small was freed meanwhile."""

LEAST_EXPLAINED: Final = 0.75
"""Share of the growth that arrays must explain: arrays chosen by their size may be older than the run."""

REST_SHARE: Final = 64
"""Share of the growth (1/64) that may stay unexplained before smaller arrays are blamed too."""


SMALL_SHARE: Final = 256
"""Share of the growth (1/256) below which an array is left out."""


@dataclasses.dataclass(frozen=True)
class Residue:
    """What a run has added.

    Attributes:
        grown: bytes by which it grew the heap, of which programs have taken `compiled`.
        known: sizes of arrays that are older, by the key of their memory.
        born: keys of memory that certainly is the run's.
        shared: whether runs before it may share in the growth: its own arrays alone are chosen then.
    """

    grown: int
    compiled: int
    known: Mapping[int, int]
    born: Collection[int]
    shared: bool

    def choose(self, heap: HeapArrays) -> tuple[list[object], dict[int, int] | None]:
        """Return the arrays that explain the growth, and all sizes (see `HeapArrays.sizes`). The whole heap must be visible."""
        room, least = self._room, self._least
        with PausedCollector():
            arrays, now = heap.find(lambda key, size: least <= size <= room and self._is_new(key, size))
            return arrays if self.shared else self._of_size(arrays, heap, room), now

    def may_be_many(self, sizes: Mapping[int, int]) -> bool:
        """Tell whether the small arrays that `choose` leaves out may explain the growth together; `sizes` are all."""
        small = sum(size for key, size in sizes.items() if size < self._least and self._is_new(key, size))
        return small >= (self.grown - self.compiled) * LEAST_EXPLAINED

    @property
    def _room(self) -> int:
        return self.grown + self.grown // SLACK_SHARE

    @property
    def _least(self) -> int:
        return max(self._room // SMALL_SHARE, 1)

    def _is_new(self, key: int, size: int) -> bool:
        return key in self.born or (self.known.get(key) != size and not self.shared)

    def _of_size(self, arrays: Sequence[object], heap: HeapArrays, room: int) -> list[object]:
        """Return the arrays that together explain the growth; none if they explain too little of it."""
        sizes = {id(array): one for array in arrays if (one := heap.read(array)) is not None}
        by_storage = {one.storage: one.storage_bytes for one in sizes.values()}
        order = sorted(by_storage.items(), key=lambda one: (one[0] not in self.born, -one[1]))
        taken: set[int] = set()
        left = room
        for key, size in order:
            if room - left >= self.grown - self.grown // REST_SHARE:
                break  # what is left of the growth is small: other arrays of that size are others'
            if size <= left:
                left -= size
                taken.add(key)
        if room - left < (self.grown - self.compiled) * LEAST_EXPLAINED:
            return []
        return [array for array in arrays if id(array) in sizes and sizes[id(array)].storage in taken]
