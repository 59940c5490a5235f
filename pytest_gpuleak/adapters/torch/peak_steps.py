"""The storages of a recorded run, and its memory over the steps by what it is used as. A step is a storage that was made."""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.model.peak_parts import MAX_STEPS, PeakStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpuleak.adapters.torch.peak_places import Place
    from pytest_gpuleak.model.peak_parts import PeakCategory

MAX_LOGGED: Final = 100_000
"""Most storages that are kept, so that a run of millions of steps takes no memory to speak of; beyond, the largest are."""


class Record:
    """A storage made while recording; `bytes` is 0 once it is resized. Refers to nothing of the user's.

    `operator` is the number of the operator that it was noted after, `address` where a device has it.
    """

    __slots__ = (
        "address", "bytes", "category", "device", "dtype", "ended", "into", "is_temporary", "number", "operator", "owner", "place", "shape"
    )  # fmt: skip

    def __init__(self, number: int, device: str, size: int, place: Place) -> None:
        self.number, self.device, self.bytes, self.place = number, device, size, place
        self.category: PeakCategory = "held"
        self.is_temporary = False
        self.into: Record | None = None  # what is in its memory afterwards where no mode is
        self.ended = 0  # the number of the storage made last when it died
        self.owner = ""
        self.dtype: Any = None
        self.shape: tuple[int, ...] = ()
        self.operator = self.address = 0


class StepLog:
    """The storages of a run, also those that have died, for its steps; `least` is the size from which on they are kept."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.least = 0

    def add(self, record: Record) -> None:
        """Keep a storage that was made."""
        if record.bytes > self.least:
            self.records.append(record)
            if len(self.records) > MAX_LOGGED:
                self._drop_smallest()

    def _drop_smallest(self) -> None:
        """Keep the larger half, in order."""
        self.least = heapq.nlargest(MAX_LOGGED // 2, (record.bytes for record in self.records))[-1]
        self.records = [record for record in self.records if record.bytes > self.least]


def steps_of(
    records: Iterable[Record], device: str, category_of: Callable[[Record], PeakCategory]
) -> tuple[PeakStep, ...]:
    """Return the memory alive on a device at its steps, of each stretch of the run the highest; one is the peak."""
    changes: dict[int, list[tuple[PeakCategory, int]]] = defaultdict(list)
    born: dict[int, Record] = {}
    for record in records:
        if record.device == device and record.bytes:
            category = category_of(record)
            born[record.number] = record
            changes[record.number].append((category, record.bytes))
            if record.ended:
                changes[record.ended + 1].append((category, -record.bytes))
    last = max(born, default=0)
    alive: dict[PeakCategory, int] = defaultdict(int)
    highest: dict[int, tuple[int, PeakStep]] = {}
    for number in sorted(changes):
        for category, size in changes[number]:
            alive[category] += size
        at = born.get(number)
        stretch = number * MAX_STEPS // (last + 1)
        total = sum(alive.values())
        if at is not None and total > highest.get(stretch, (-1,))[0]:
            line = at.place.line
            file, where = (None, None) if line is None else (line.file, line.line)
            sizes: dict[str, int] = {category: size for category, size in alive.items() if size}
            highest[stretch] = total, PeakStep(number, at.place.phase, file, where, sizes)
    return tuple(step for _, step in highest.values())
