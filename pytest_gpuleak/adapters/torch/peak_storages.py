"""Follow the storages that code makes, and keep what was alive when a device's memory peaked.

What a run peaked with is kept as it goes: the records of storages that are alive, and of those that have died since the
peak. A storage's end is told by a weak reference on it, also where an autograd graph alone held it.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.torch.live_storages import FRESH, LiveStorages, may_reuse
from pytest_gpuleak.adapters.torch.peak_steps import Record, StepLog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpuleak.adapters.torch.peak_places import Place, Places


class _Gauge:
    """The bytes alive on one device, their peak, and the records that have died since the peak was reached."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self.at: Record | None = None
        self.died: list[Record] = []
        self.rising: Record | None = None
        """What was made last, while it is not known whether it is made in the memory of what then ends."""

    def rise(self) -> None:
        """Note the peak, if what was made last has raised it."""
        record, self.rising = self.rising, None
        if record is not None and self.now > self.peak:
            self.peak, self.at = self.now, record
            self.died.clear()


class Storages:
    """The storages made while recording, and each device's peak."""

    def __init__(self, torch: Any, places: Places) -> None:
        self._live = LiveStorages(torch, self._died)
        self.find, self.parts, self.makes = self._live.find, self._live.parts, self._live.makes
        self.resizes = self._live.resizes
        self._torch, self._bytes = torch, torch.uint8
        self._reusing: tuple[Record, Record | None] | None = None
        """What was made last that may have the memory of an argument where no mode is, and that argument."""
        self._places = places
        self._name_of = functools.cache(str)
        self.paused = False
        """Whether what is made now counts as there before."""
        self._count = 0
        self._left: list[Record] = []
        self.on_devices: list[Record] | None = None
        """All records of devices with a history, where it is recorded."""
        self.gauges: dict[str, _Gauge] = defaultdict(_Gauge)
        self.log = StepLog()

    def add(self, results: Iterable[Any], operator: Any, given: Any, node: Any, number: int) -> None:
        """Record the storages that an operator has made; `number` is the operator's in the allocator's history."""
        for tensor, storage, before in () if self.paused else self._live.made_by(operator, results, given):
            if operator._opname == FRESH and not storage.resizable():
                continue  # NumPy's memory
            record = self._hold(storage, before, self._places.place(operator.__name__, node), number)
            if may_reuse(self._torch, operator, given[0], node):
                self._reusing = record, self._live.find(given[0][0])
            record.dtype = tensor.dtype
            if record.bytes and not tensor.is_nested:
                record.shape = tuple(map(int, tensor.shape))

    def resized(self, storage: Any, before: Record | None) -> None:
        """Record the new block of a storage whose own `resize_` was called."""
        if not self.paused:
            record = self._hold(storage, before, self._places.place("resize_", None), 0)
            record.dtype = self._bytes if before is None else before.dtype

    def _hold(self, storage: Any, before: Record | None, place: Place, number: int) -> Record:
        record = self._new(self._name_of(storage.device), storage.nbytes(), place)
        if number and self.on_devices is not None and record.device.startswith("cuda"):
            record.operator, record.address = number, storage.data_ptr()
            self.on_devices.append(record)
        if before is not None:  # the old block is released once the new one is there
            record.category, record.owner = before.category, before.owner
            self._end(before)
        self._live.hold(storage, record)
        return record

    def _new(self, device: str, size: int, place: Place) -> Record:
        self._count += 1
        record = Record(self._count, device, size if device != "meta" else 0, place)
        gauge = self.gauges[device]
        gauge.rise()
        gauge.now += record.bytes
        gauge.rising = record
        self.log.add(record)
        return record

    def _died(self, record: Record) -> None:
        if record.category in ("held", "input"):  # the categories that end as temporary ones
            record.is_temporary = self._places.still_runs(record.place, is_newest=record.number == self._count)
        self._end(record)

    def _end(self, record: Record) -> None:
        gauge = self.gauges[record.device]
        is_reused = gauge.rising is not None and self._reusing == (gauge.rising, record)
        if is_reused:
            record.into = gauge.rising
        else:
            gauge.rise()
        gauge.now -= record.bytes
        record.ended = self._count - is_reused
        if gauge.at is not None and record.number <= gauge.at.number:
            gauge.died.append(record)

    def close(self) -> None:
        """End the record: what is released from now on is told no more."""
        self._left = self._live.close()
        for gauge in self.gauges.values():
            gauge.rise()

    def at_peak(self, device: str) -> tuple[Record, list[Record]] | None:
        """Return the record with which the device peaked, and all records then alive, oldest first, once closed; None without any."""
        gauge = self.gauges.get(device)
        if gauge is None or gauge.at is None:
            return None
        last = gauge.at
        records = [one for one in (*gauge.died, *self._left) if one.device == device and one.number <= last.number]
        return last, sorted(records, key=lambda one: one.number)
