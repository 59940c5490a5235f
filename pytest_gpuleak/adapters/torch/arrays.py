"""Read torch tensors and storages without importing torch (see `lookup`); `reading` is loaded by the first read."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.arrays import ALWAYS
from pytest_gpuleak.adapters.torch import lookup as torch_lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    from pytest_gpuleak.adapters.protocol import OriginLog, StorageHandle
    from pytest_gpuleak.model.readings import ArrayReading, MemoryRange


class TorchArrays:
    """Reads tensors of a torch that the tests have imported."""

    name = "torch"
    needs = ALWAYS

    def array_type(self) -> type | None:
        """Return ``torch._C.TensorBase``; None until torch is fully imported, and for a user's stand-in."""
        lookup = torch_lookup.LOOKUP
        if sys.modules.get("torch") is not lookup.module() or (
            lookup.tensor_base is None and len(sys.path_importer_cache) != lookup.folders
        ):
            lookup.refresh()
        return lookup.tensor_base

    def storage(self, array: object) -> int:
        """Return the address of the StorageImpl; of the TensorImpl for layouts without a storage (sparse, opaque)."""
        key: int = self._reading.storage_of(array)
        return key

    def read(self, array: object) -> ArrayReading | None:
        """Return a tensor's metadata; None for tensors without memory (fake, meta, functional, wrapper, empty)."""
        reading: ArrayReading | None = self._reading.read_tensor(array)
        return reading

    def hold(self, array: object) -> StorageHandle:
        """Return a C++ weak reference to the storage, or to the tensor if it has no storage."""
        handle: StorageHandle = self._reading.hold_tensor(array)
        return handle

    def read_many(self, arrays: Sequence[object]) -> list[ArrayReading | None]:
        """Return the metadata of each tensor."""
        readings: list[ArrayReading | None] = self._reading.read_tensors(arrays)
        return readings

    def hold_many(self, arrays: Sequence[object]) -> list[StorageHandle]:
        """Return a C++ weak reference for each tensor."""
        handles: list[StorageHandle] = self._reading.hold_tensors(arrays)
        return handles

    def memory(self, array: object) -> MemoryRange | None:
        """Return where the storage's memory is; None without memory, or if only a copy would tell."""
        found: MemoryRange | None = self._reading.memory_of_tensor(array)
        return found

    def storage_users(self, array: object) -> int | None:
        """Return the storage's reference count: all tensors, and its Python object once code has asked for it."""
        users: int | None = self._reading.users_of_storage(array)
        return users

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """Note creating lines by a torch function mode (see `adapters.torch.creation_lines`)."""
        from pytest_gpuleak.adapters.torch.creation_lines import trace_origins

        return trace_origins(torch_lookup.loaded_torch(), is_user_file)

    @cached_property
    def _reading(self) -> ModuleType:
        from pytest_gpuleak.adapters.torch import reading as torch_reading

        return torch_reading


class TorchStorages(TorchArrays):
    """Reads storages that no tensor shares: ``tensor.untyped_storage()`` kept longer than its tensor."""

    name = "torch storages"

    def array_type(self) -> type | None:
        """Return ``torch._C.StorageBase``; None until `TorchArrays.array_type` has found torch."""
        return torch_lookup.LOOKUP.storage_base

    def storage(self, array: object) -> int:
        """Return the address of the StorageImpl."""
        key: int = self._reading.storage_address(array)
        return key

    def read(self, array: object) -> ArrayReading | None:
        """Return a storage's metadata; None if it owns no memory or a tensor shares it."""
        reading: ArrayReading | None = self._reading.read_storage(array)
        return reading

    def hold(self, array: object) -> StorageHandle:
        """Return a C++ weak reference to the storage."""
        handle: StorageHandle = self._reading.hold_storage(array)
        return handle

    def read_many(self, arrays: Sequence[object]) -> list[ArrayReading | None]:
        """Return the metadata of each storage."""
        return [self.read(array) for array in arrays]

    def hold_many(self, arrays: Sequence[object]) -> list[StorageHandle]:
        """Return a C++ weak reference for each storage."""
        return [self.hold(array) for array in arrays]

    def memory(self, array: object) -> MemoryRange | None:
        """Return where the storage's memory is; None without memory."""
        found: MemoryRange | None = self._reading.memory_of_storage(array)
        return found

    def storage_users(self, array: object) -> int | None:
        """Return how many own the storage, its Python object included."""
        users: int | None = self._reading.owners_of_storage(array)
        return users

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """Note nothing: lines are noted for tensors, under the same keys."""
        del is_user_file
        return nullcontext({})
