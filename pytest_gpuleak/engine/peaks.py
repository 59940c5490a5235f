"""Compute what CUDA's caching allocator hands out and reserves, without a device. Pure arithmetic; all sizes are bytes.

The rules are those of torch's c10/cuda/CUDACachingAllocator.cpp for one stream, without `PYTORCH_CUDA_ALLOC_CONF`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuleak.model.text import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNIT: Final = 512
"""A block is a multiple of it (`kMinBlockSize`)."""

_SMALL: Final = MIB
"""A block of up to this size comes from the pool of small segments (`kSmallSize`)."""

_SMALL_SEGMENT: Final = 2 * MIB
_LARGE_SEGMENT: Final = 20 * MIB
_OWN_SEGMENT: Final = 10 * MIB
"""A block of this size and above has a segment of its own, a multiple of 2 MiB (`kMinLargeAlloc`, `kRoundLarge`)."""


class PeakBytes(NamedTuple):
    """The highest sums of the blocks handed out, and of the segments they came from."""

    allocated: int = 0
    reserved: int = 0


class _Block:
    """A part of a segment; `before` and `after` are its neighbours in the segment."""

    __slots__ = ("after", "before", "size", "small", "used")

    def __init__(self, size: int, before: int | None, after: int | None, *, small: bool) -> None:
        self.size, self.before, self.after, self.small = size, before, after, small
        self.used = False


class CachingAllocator:
    """Hands out blocks by address; the smallest free block that fits is used, of several the one of the lowest address."""

    def __init__(self) -> None:
        self.allocated = self.reserved = 0
        self.peak = PeakBytes()
        self._blocks: dict[int, _Block] = {}
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # by small: sorted sizes and addresses
        self._next = 0

    def allocate(self, size: int) -> int:
        """Return the address of a block of `size` bytes or more, which is above 0."""
        size = rounded(size)
        small = size <= _SMALL
        free = self._free[small]
        place = bisect_left(free, (size, 0))
        address = free.pop(place)[1] if place < len(free) else self._reserve(size, small=small)
        block = self._blocks[address]
        rest = block.size - size
        # A large block keeps a rest of up to 1 MiB, which is allocated with it (`should_split`).
        if rest >= _UNIT if small else rest > _SMALL:
            self._split(address, size)
        block.used = True
        self.allocated += block.size
        self.peak = PeakBytes(max(self.peak.allocated, self.allocated), max(self.peak.reserved, self.reserved))
        return address

    def _reserve(self, size: int, *, small: bool) -> int:
        if small:
            segment = _SMALL_SEGMENT
        elif size < _OWN_SEGMENT:
            segment = _LARGE_SEGMENT
        else:
            segment = -(-size // _SMALL_SEGMENT) * _SMALL_SEGMENT
        address = self._next
        self._next += segment
        self._blocks[address] = _Block(segment, None, None, small=small)
        self.reserved += segment
        return address

    def _split(self, address: int, size: int) -> None:
        block = self._blocks[address]
        rest = address + size
        self._blocks[rest] = _Block(block.size - size, address, block.after, small=block.small)
        if block.after is not None:
            self._blocks[block.after].before = rest
        insort(self._free[block.small], (block.size - size, rest))
        block.size, block.after = size, rest

    def release(self, address: int) -> None:
        """Take back a block, and join it to its free neighbours."""
        block = self._blocks[address]
        self.allocated -= block.size
        block.used = False
        after, before = block.after, block.before
        if after is not None and not self._blocks[after].used:
            self._take(after)
            self._join(address, after)
        if before is not None and not self._blocks[before].used:
            self._take(before)
            self._join(before, address)
            address = before
        insort(self._free[block.small], (self._blocks[address].size, address))

    def _take(self, address: int) -> None:
        block = self._blocks[address]
        free = self._free[block.small]
        del free[bisect_left(free, (block.size, address))]

    def _join(self, first: int, second: int) -> None:
        block, joined = self._blocks[first], self._blocks.pop(second)
        block.size += joined.size
        block.after = joined.after
        if joined.after is not None:
            self._blocks[joined.after].before = first


def rounded(size: int) -> int:
    """Return the size of the block for a request: the next multiple of 512, at least 512."""
    return max(_UNIT, -(-size // _UNIT) * _UNIT)


def peak_of(blocks: Iterable[tuple[int, int]]) -> PeakBytes:
    """Return the peaks of a sequence of blocks, each with its number: its size where it begins, 0 where it ends.

    A number is used again once its block has ended. The end of a block that has not begun is passed over, as is a
    request of 0 bytes, which takes no block.
    """
    allocator = CachingAllocator()
    held: dict[int, int] = {}
    for number, size in blocks:
        if size:
            held[number] = allocator.allocate(size)
        elif number in held:
            allocator.release(held.pop(number))
    return allocator.peak
