"""Replay what CUDA's caching allocator has done: its peak in bytes of blocks, and the blocks then in use. Pure.

A block is found by its address, so that the allocator's choice among free ones need not be computed: only its sizes are,
by how it rounds, splits and joins blocks (c10/cuda/CUDACachingAllocator.cpp: `round_size`, `should_split`, `free_block`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.adapters.torch.allocator_history import WORKSPACES, blocks_in_use

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    Entry = Mapping[str, Any]

PAUSED: Final = "paused"
"""Mark of what is allocated and freed where another's memory is made: it was there before."""

_LEAST: Final = 512
"""Bytes that blocks are rounded to."""
_ANY: Final = 0
"""The segment of blocks that are mapped one by one: those that touch are of one."""
_SMALL: Final = 1 << 20
"""Bytes of the largest blocks of the pool of small ones, and of the most that is left in a large one unsplit."""


class Held(NamedTuple):
    """A block in use: its address, the bytes that were asked for and that it has, and the index of its trace's entry."""

    address: int
    requested: int
    bytes: int
    entry: int


class Replayed(NamedTuple):
    """A device's peak, in bytes of blocks above what was there before, without `workspaces`; `entry` is the index of its last entry.

    `gone` bytes of what was there before had been freed: the blocks `held` have that much more. Not `exact`: the bytes
    are those that were asked for, rounded.
    """

    bytes: int
    entry: int
    held: Sequence[Held]
    gone: int
    workspaces: int
    exact: bool


def replay(
    before: Sequence[Entry], snapshot: Mapping[str, Any], device: int, reusing: Collection[str] = frozenset()
) -> Replayed:
    """Replay a snapshot's trace of a device, from the segments that were there `before`.

    `reusing` are the marks of operators that, without a mode, would be done in the block which is released right after them.
    """
    trace = snapshot["device_traces"][device]
    try:
        sizes = _sizes_of(trace, _Blocks(before, snapshot.get("allocator_settings") or {}, device))
        in_use = sum(int(block["size"]) for _, block in blocks_in_use(snapshot["segments"], device))
        exact = in_use == sizes.pop(-1)
    except (KeyError, ValueError):  # an allocator of other rules, or a trace without its beginning
        exact = False
    if not exact:
        sizes = {index: _rounded(int(entry["size"])) for index, entry in enumerate(trace)}
    apart = _workspaces_of(trace)
    run = _Run(trace, sizes, apart, reusing)
    run.follow(len(trace))
    peak, last = run.peak, run.last
    run = _Run(trace, sizes, apart, reusing)
    run.follow(last + 1)
    held = [Held(address, int(trace[index]["size"]), sizes[index], index) for address, index in run.held.items()]
    return Replayed(peak, last, held, run.gone, sum(sizes[index] for index in apart), exact)


class _Run:
    """Follows a trace: what is in use above what was there before, and its peak. `sizes` are by the entry's index."""

    def __init__(
        self, trace: Sequence[Entry], sizes: Mapping[int, int], apart: Collection[int], reusing: Collection[str]
    ) -> None:
        self._trace, self._sizes, self._apart, self._reusing = trace, sizes, apart, reusing
        self.now = self.peak = self.gone = 0
        self.last = -1
        self.held: dict[int, int] = {}

    def follow(self, count: int) -> None:
        """Follow so many entries."""
        released = -1
        for index, entry in enumerate(self._trace[:count]):
            action, mark = entry["action"], mark_of(entry)
            if action == "alloc" and mark in self._reusing:
                released = self._release_reused(index, mark) or released
            if action == "alloc" and index not in self._apart and mark != PAUSED:
                self.held[entry["addr"]] = index
                self.now += self._sizes[index]
                if self.now > self.peak:
                    self.peak, self.last = self.now, index
            elif action == "free_requested" and index != released:
                made = self.held.pop(entry["addr"], None)
                if made is not None:
                    self.now -= self._sizes[made]
                elif mark not in (PAUSED, WORKSPACES):
                    self.now -= self._sizes[index]
                    self.gone += self._sizes[index]

    def _release_reused(self, index: int, mark: str) -> int:
        """Release the block that is released right after the operator, if it is as large; return the entry that does so, or 0."""
        end = next((at for at in range(index + 1, len(self._trace)) if mark_of(self._trace[at]) != mark), 0)
        after = self._trace[end]
        made = self.held.get(after["addr"]) if end and after["action"] == "free_requested" else None
        if made is None or after["size"] != self._trace[index]["size"]:
            return 0
        self.now -= self._sizes[self.held.pop(after["addr"])]
        return end


def _workspaces_of(trace: Sequence[Entry]) -> set[int]:
    """Return the indices of the entries by which workspaces were allocated."""
    allocated: dict[int, int] = {}
    found: set[int] = set()
    for index, entry in enumerate(trace):
        if entry["action"] == "alloc":
            allocated[entry["addr"]] = index
        elif entry["action"] == "free_requested":
            made = allocated.pop(entry["addr"], None)
            if made is not None and mark_of(entry) == WORKSPACES and mark_of(trace[made]) != PAUSED:
                found.add(made)
    return found


def _sizes_of(trace: Sequence[Entry], blocks: _Blocks) -> dict[int, int]:
    """Return the bytes of the block that each entry allocates or frees, and at -1 those in use at the end.

    Raises KeyError where a block is not known.
    """
    sizes: dict[int, int] = {}
    for index, entry in enumerate(trace):
        action, address, size = entry["action"], int(entry["addr"]), int(entry["size"])
        if action == "alloc":
            sizes[index] = blocks.take(address, size)
        elif action == "free_requested":
            sizes[index] = blocks.release(address)
        elif action == "free_completed":
            blocks.put_back(address)
        elif action in ("segment_alloc", "segment_map"):
            blocks.add(address, size, mapped=action == "segment_map")
        elif action in ("segment_free", "segment_unmap"):
            blocks.remove(address, size)
    sizes[-1] = blocks.in_use
    return sizes


class _Block:
    __slots__ = ("bytes", "segment", "used")

    def __init__(self, size: int, segment: int, *, used: bool) -> None:
        self.bytes, self.segment, self.used = size, segment, used


class _Blocks:
    """The blocks of a device by address. Raises ValueError for settings of the allocator that it does not know."""

    def __init__(self, segments: Sequence[Entry], settings: Entry, device: int) -> None:
        if any((settings.get("roundup_power2_divisions") or {}).values()):
            raise ValueError("blocks are rounded otherwise")
        most = int(settings.get("max_split_size", -1))
        self._most = most if most >= 0 else sys.maxsize
        self._expandable = bool(settings.get("expandable_segments"))
        self._blocks: dict[int, _Block] = {}
        self._ends: dict[int, int] = {}
        self.in_use = 0
        for segment in segments:
            address = int(segment["address"])
            for block in segment["blocks"] if segment.get("device", device) == device else ():
                size = int(block["size"])
                name = _ANY if segment.get("is_expandable") else int(segment["address"])
                used = block["state"] != "inactive"
                self._set(address, _Block(size, name, used=used))
                self.in_use += size if block["state"] == "active_allocated" else 0
                address += size

    def take(self, address: int, requested: int) -> int:
        """Hand the free block at an address out; return its bytes, once what is over was split off."""
        block, size = self._blocks[address], _rounded(requested)
        rest = block.bytes - size
        small = size <= _SMALL or self._expandable
        if rest >= _LEAST if small else rest > _SMALL and size < self._most:
            self._set(address, _Block(size, block.segment, used=True))
            self._set(address + size, _Block(rest, block.segment, used=False))
        block = self._blocks[address]
        block.used = True
        self.in_use += block.bytes
        return block.bytes

    def release(self, address: int) -> int:
        """Count a block as in use no more, which a stream may still use; return its bytes."""
        self.in_use -= self._blocks[address].bytes
        return self._blocks[address].bytes

    def put_back(self, address: int) -> None:
        """Join a block that is free with its free neighbours."""
        block = self._blocks[address]
        block.used = False
        self._join(address, address + block.bytes)
        before = self._ends.get(address)
        if before is not None:
            self._join(before, address)

    def add(self, address: int, size: int, *, mapped: bool) -> None:
        """Add a segment, or pages of an expandable one."""
        self._set(address, _Block(size, _ANY if mapped else address, used=False))
        self.put_back(address)

    def remove(self, address: int, size: int) -> None:
        """Remove a segment, or pages of an expandable one."""
        start = next((at for at, block in self._blocks.items() if at <= address < at + block.bytes), address)
        block = self._blocks.pop(start)
        del self._ends[start + block.bytes]
        for at, end in ((start, address), (address + size, start + block.bytes)):
            if at < end:
                self._set(at, _Block(end - at, block.segment, used=False))

    def _set(self, address: int, block: _Block) -> None:
        self._blocks[address] = block
        self._ends[address + block.bytes] = address

    def _join(self, address: int, following: int) -> None:
        block, other = self._blocks[address], self._blocks.get(following)
        if other is None or block.used or other.used or block.segment != other.segment:
            return
        del self._blocks[following], self._ends[following]
        block.bytes += other.bytes
        self._ends[address + block.bytes] = address


def mark_of(entry: Entry) -> str:
    """Return how the thread was marked that allocated or freed."""
    return str(entry.get("user_metadata") or "")


def _rounded(size: int) -> int:
    return max(_LEAST, -(-size // _LEAST) * _LEAST)
