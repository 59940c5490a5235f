"""Record the history of CUDA's allocator while code runs, and join its blocks with the storages that a mode has seen.

What the allocator hands out beyond storages is memory inside an operator: each operator is numbered, and the number marks
what it allocates in the history (`torch._C._cuda_setMemoryMetadata`).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.adapters.torch.allocator_history import AllocatorRecord
from pytest_gpuleak.adapters.torch.peak_replay import PAUSED, mark_of, replay
from pytest_gpuleak.adapters.torch.settle_steps import free_workspaces_now

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuleak.adapters.torch.peak_places import Place
    from pytest_gpuleak.adapters.torch.peak_replay import Replayed
    from pytest_gpuleak.adapters.torch.peak_steps import Record

MOST_EVENTS: Final = 200_000
"""Events and operators of a history, some 500 bytes each, beyond which it is given up."""

TOO_LONG: Final = f"the run was longer than {MOST_EVENTS:,} events of the allocator"


class Used(NamedTuple):
    """A block at a peak of `bytes`: the storage that it is, or the place of the operator that it is inside of, if known."""

    bytes: int
    record: Record | None
    place: Place | None


class DevicePeak(NamedTuple):
    """A device's peak by the history, the place of its last operator, and the blocks then in use."""

    replayed: Replayed
    place: Place | None
    used: Sequence[Used]


class PeakHistory(AllocatorRecord):
    """The allocator's history between `begin_marked` and `end`."""

    def __init__(self, torch: Any) -> None:
        super().__init__()
        self._core: Any = torch._C
        self._numbers = itertools.count(1)
        self._places: dict[int, Place] = {}
        self._known: dict[Place, Place] = {}
        self._before: Sequence[Mapping[str, Any]] = ()
        self.reusing: set[str] = set()
        """The marks of operators that may have their first argument's memory where no mode is."""

    def begin_marked(self) -> None:
        """Begin, without stacks: each operator's mark tells its place."""
        self._before = self.begin(None, MOST_EVENTS)

    def _why_not(self) -> str:
        marks = hasattr(self._core, "_cuda_setMemoryMetadata")
        why = super()._why_not()
        return why or ("" if marks else "this torch cannot tell by which operator memory was allocated")

    def _finish(self) -> None:
        """Free the workspaces that are left, which tells them from other blocks, and take the snapshot."""
        if self._core._cuda_isHistoryEnabled():
            free_workspaces_now()
            super()._finish()
        else:
            self.recording = False
            self.why_not = "the run has ended the record of the allocator's history"

    # -- while it is recorded

    def enter_operator(self, *, paused: bool) -> tuple[int, str]:
        """Mark what the calling thread allocates from now on; return the operator's number, and the mark before."""
        number, before = next(self._numbers), self._core._cuda_getMemoryMetadata()
        self._core._cuda_setMemoryMetadata(PAUSED if paused else str(number))
        return number, before

    def leave_operator(self, before: str) -> None:
        """Restore the mark."""
        self._core._cuda_setMemoryMetadata(before)

    def note(self, number: int, place: Place) -> None:
        """Note where an operator was called."""
        if number >= MOST_EVENTS:
            self._places.clear()
            self._known.clear()
            self.stop()
            self.why_not = TOO_LONG
            return
        self._places[number] = self._known.setdefault(place, place)

    def pause(self) -> None:
        """Mark what is allocated from now on as there before."""
        if self.recording:
            self._core._cuda_setMemoryMetadata(PAUSED)

    def resume(self) -> None:
        """Mark it so no more."""
        if self.recording:
            self._core._cuda_setMemoryMetadata("")

    # -- the result

    def peak(self, device: str, records: Iterable[Record]) -> DevicePeak | None:
        """Return the peak of a device; None without a history of it."""
        kind, _, number = device.partition(":")
        if self.snapshot is None or kind != "cuda" or not number.isdigit():
            return None
        trace = self.snapshot["device_traces"][int(number)]
        if len(trace) >= MOST_EVENTS:
            self.why_not = TOO_LONG
            return None
        replayed = replay(self._before, self.snapshot, int(number), self.reusing)
        if replayed.entry < 0:
            return None
        storages = _storages_of(trace, [record for record in records if record.device == device])
        used = [
            Used(block.requested, storages.get(block.entry), self._place_of(trace[block.entry]))
            for block in replayed.held
        ]
        last = storages.get(replayed.entry)  # which no operator may have allocated
        return DevicePeak(replayed, self._place_of(trace[replayed.entry]) or (last.place if last else None), used)

    def _place_of(self, entry: Mapping[str, Any]) -> Place | None:
        mark = mark_of(entry)
        return self._places.get(int(mark)) if mark.isdigit() else None


def _storages_of(trace: Sequence[Mapping[str, Any]], records: Iterable[Record]) -> dict[int, Record]:
    """Return by the entry that allocated it the storage that a block is: the first one noted, if there are several.

    An operator's storages are noted once it has returned: a block is the storage that has its address, and was noted by
    the operator that allocated it, or by a later one before the address was allocated again.
    """
    allocated: dict[int, list[tuple[int, int]]] = defaultdict(list)
    last = 0
    for index, entry in enumerate(trace):
        if entry["action"] == "alloc":
            mark = mark_of(entry)
            last = max(last, int(mark)) if mark.isdigit() else last
            allocated[int(entry["addr"])].append((int(mark) if mark.isdigit() else last, index))
    found: dict[int, Record] = {}
    for record in records:
        entries = [index for number, index in allocated.get(record.address, ()) if number <= record.operator]
        if entries:
            found.setdefault(entries[-1], record)
    return found
