"""Follow the storages that code makes, and keep what was alive when a device's memory peaked.

What a run peaked with is kept as it goes: the records of storages that are alive, and of those that have died since the
peak. A storage's end is told by a weak reference on it, also where an autograd graph alone held it.
"""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from pytest_gpuleak.adapters.arrays import select_arrays
from pytest_gpuleak.adapters.torch.peak_steps import Record, StepLog
from pytest_gpuleak.adapters.torch.storages import StorageReference
from pytest_gpuleak.heap.collector import get_objects, whole_heap

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.torch.peak_places import Place, Places

_RESIZING: Final = ("resize_", "resize_as_", "set_", "set_data", "_resize_output_")
"""Operators that give a tensor a storage of another size, or another one."""


class _Handle(ref):  # type: ignore[type-arg] # of a class of torch's
    """A weak reference on a storage."""

    __slots__ = ("key", "record")

    key: int
    record: Record


class _Gauge:
    """The bytes alive on one device, their peak, and the records that have died since the peak was reached."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self.at: Record | None = None
        self.died: list[Record] = []


class Storages:
    """The storages made while recording, by address, and each device's peak."""

    def __init__(self, torch: Any, places: Places) -> None:
        self._address: Any = torch._C._storage_address
        self._storage_of: Any = torch._C.TensorBase.untyped_storage
        self._no_overrides: Any = torch._C.DisableTorchFunctionSubclass
        self._plain = frozenset((torch.Tensor, torch.nn.Parameter))
        self._places = places
        self._resizes = functools.cache(_resizes)
        self._before: dict[int, StorageReference] = {}  # while a C++ reference is held, no storage gets the address
        self._base: Any = torch._C.StorageBase
        self.paused = False
        self._alive: dict[int, _Handle] = {}
        self._count = 0
        self._left: list[Record] = []
        self.on_devices: list[Record] | None = None
        """All records of devices with a history, where it is recorded."""
        self.gauges: dict[str, _Gauge] = defaultdict(_Gauge)
        self.log = StepLog()

    def note_existing(self, tensor_class: type) -> None:
        """Note the storages that exist now, which count as there before. Storages of C++ alone are not met."""
        with whole_heap():
            for tensor in select_arrays(get_objects(), [tensor_class]):
                with contextlib.suppress(Exception):  # sparse and wrapping tensors have none
                    self._keep_apart(self._address(tensor), tensor)

    def _keep_apart(self, key: int, tensor: Any) -> None:
        if key not in self._before:
            with self._no_overrides():
                self._before[key] = StorageReference(self._base, self._storage_of(tensor))

    def find(self, tensor: Any) -> Record | None:
        """Return the record of a tensor's storage; None if it was there before, or the tensor has none."""
        try:
            handle = self._alive.get(self._address(tensor))
        except Exception:  # noqa: BLE001 - a sparse tensor, or one that wraps others
            return None
        return None if handle is None else handle.record

    def add(self, tensor: Any, operator: Any, node: Any, number: int = 0) -> Record | None:
        """Return the record of the storage of an operator's result; a new one if the storage is new, or was resized.

        `number` is the operator's in the allocator's history.
        """
        key = self._address(tensor)
        handle = self._alive.get(key)
        if handle is None:
            if key == 0 or key in self._before:
                return None
            if self.paused:
                self._keep_apart(key, tensor)
                return None
        elif not self._resizes(operator):
            return handle.record
        with contextlib.nullcontext() if type(tensor) in self._plain else self._no_overrides():
            storage = self._storage_of(tensor)
            size, device = storage.nbytes(), str(storage.device)
            if handle is not None and handle.record.bytes == size:
                return handle.record
            record = self._new(device, size, self._places.place(operator.__name__, node))
            self._describe(record, tensor)
            if number and self.on_devices is not None and device.startswith("cuda"):
                record.operator, record.address = number, storage.data_ptr()
                self.on_devices.append(record)
        if handle is not None:  # the old block is released once the new one is there
            record.category, record.owner = handle.record.category, handle.record.owner
            self._end(handle.record)
        self._hold(storage, key, record)
        return record

    def _new(self, device: str, size: int, place: Place) -> Record:
        self._count += 1
        record = Record(self._count, device, size if device != "meta" else 0, place)
        gauge = self.gauges[device]
        gauge.now += record.bytes
        self.log.add(record)
        if gauge.now > gauge.peak:
            gauge.peak, gauge.at = gauge.now, record
            gauge.died.clear()
        return record

    @staticmethod
    def _describe(record: Record, tensor: Any) -> None:
        record.dtype = str(tensor.dtype).removeprefix("torch.")
        if record.bytes and not tensor.is_nested:
            shape = tuple(map(int, tensor.shape))
            item = tensor.element_size()
            record.shape = shape if tensor.numel() * item >= record.bytes else (record.bytes // item,)

    def _hold(self, storage: Any, key: int, record: Record) -> None:
        handle = _Handle(storage, self._died)
        handle.key, handle.record = key, record
        self._alive[key] = handle

    def _died(self, handle: _Handle) -> None:
        if self._alive.get(handle.key) is handle:
            del self._alive[handle.key]
            handle.record.is_temporary = self._places.still_runs(handle.record.place)
            self._end(handle.record)

    def _end(self, record: Record) -> None:
        gauge = self.gauges[record.device]
        gauge.now -= record.bytes
        record.ended = self._count
        if gauge.at is not None and record.number <= gauge.at.number:
            gauge.died.append(record)

    def close(self) -> None:
        """End the record: what is released from now on is told no more."""
        self._left = [handle.record for handle in self._alive.values()]
        self._before.clear()
        self._alive = {}

    def at_peak(self, device: str) -> tuple[Record, list[Record]] | None:
        """Return the record with which the device peaked, and all records then alive, oldest first, once closed; None without any."""
        gauge = self.gauges.get(device)
        if gauge is None or gauge.at is None:
            return None
        last = gauge.at
        records = [one for one in (*gauge.died, *self._left) if one.device == device and one.number <= last.number]
        return last, sorted(records, key=lambda one: one.number)


def _resizes(operator: Any) -> bool:
    schema = operator._schema
    return bool(schema.is_mutable) and (operator._opname in _RESIZING or operator._overloadname.endswith("out"))
