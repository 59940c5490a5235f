"""Read and hold torch's storages by their C class's descriptors, independently of `sys.modules`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.torch.lookup import loaded_torch
from pytest_gpuleak.model.readings import ArrayReading, MemoryRange

if TYPE_CHECKING:
    from collections.abc import Sequence


class StorageReference:
    """A C++ weak reference: ``torch.utils.swap_tensors`` (a module's ``.to()``) refuses tensors with Python's."""

    __slots__ = ("_address", "_expired", "_free", "storage")

    def __init__(self, base: Any, storage: Any) -> None:
        # Bound here: when the interpreter ends, the class may lose its names before this object is freed.
        self._expired, self._free = base._expired, base._free_weak_ref
        self.storage = int(base._cdata.__get__(storage))
        self._address = base._weak_ref(storage)

    def alive(self) -> bool:
        """Return whether the memory still has an owner."""
        return not self._expired(self._address)

    def __del__(self) -> None:
        if hasattr(self, "_address"):  # else torch refused the reference
            self._free(self._address)


def storage(array: object) -> int:
    """Return the address of a storage's StorageImpl."""
    return int(loaded_torch()._C.StorageBase._cdata.__get__(array))


def read_many(arrays: Sequence[object]) -> list[ArrayReading | None]:
    """Return the metadata; None for a storage without memory, and if a tensor shares it and is found by itself."""
    return [_read(array) for array in arrays]


def hold(array: object) -> StorageReference:
    """Return a C++ weak reference to a storage."""
    return StorageReference(loaded_torch()._C.StorageBase, array)


def memory(array: Any) -> MemoryRange | None:
    """Return where a storage's memory is; None without memory. Raises torch's error for an invalid storage."""
    base = loaded_torch()._C.StorageBase
    start = int(base.data_ptr(array))
    # A storage over borrowed memory cannot be resized.
    return MemoryRange(start, int(base.nbytes(array)), not base.resizable(array)) if start else None


def storage_users(array: object) -> int | None:
    """Return how many own a storage: its Python object and each tensor; None if unknown."""
    try:
        return int(loaded_torch()._C._storage_Use_Count(storage(array)))
    except (AttributeError, RuntimeError):
        return None


def _read(array: object) -> ArrayReading | None:
    if storage_users(array) != 1:
        return None
    base = loaded_torch()._C.StorageBase
    try:
        size, device = int(base.nbytes(array)), base.device.__get__(array)
        if size == 0 or device.type == "meta" or not base.data_ptr(array):
            return None
    except Exception:  # noqa: BLE001 - "invalid python storage": there is no memory behind it
        return None
    key = storage(array)
    return ArrayReading(id(array), (size,), "untyped storage", str(device), size, key, size)
