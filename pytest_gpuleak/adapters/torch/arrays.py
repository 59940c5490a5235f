"""torch tensors and storages, as Python sees them. torch is never imported here: see `adapters.torch.lookup`.

What reads them is loaded when there is something to read.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.torch import lookup as torch_lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    from pytest_gpuleak.adapters.protocol import OriginLog, StorageHandle
    from pytest_gpuleak.model.readings import ArrayReading


class TorchArrays:
    """Reads tensors of a torch that the tests have imported."""

    name = "torch"

    def array_type(self) -> type | None:
        """``torch._C.TensorBase``, or None while torch is not imported (or is being imported, or is a user's stand-in)."""
        lookup = torch_lookup.LOOKUP
        if sys.modules.get("torch") is not lookup.module() or (
            lookup.tensor_base is None and len(sys.path_importer_cache) != lookup.folders
        ):
            lookup.refresh()
        return lookup.tensor_base

    def storage(self, array: object) -> int:
        """Address of the StorageImpl; of the TensorImpl where a layout has none (sparse, opaque)."""
        key: int = self._reading.storage_of(array)
        return key

    def read(self, array: object) -> ArrayReading | None:
        """Metadata of a tensor; None for fake, meta, functional, wrapper and empty ones, which own no memory."""
        reading: ArrayReading | None = self._reading.read_tensor(array)
        return reading

    def hold(self, array: object) -> StorageHandle:
        """A C++ weak reference to the storage, or to the tensor where there is no storage."""
        handle: StorageHandle = self._reading.hold_tensor(array)
        return handle

    def read_many(self, arrays: Sequence[object]) -> list[ArrayReading | None]:
        """As `read`, for each."""
        readings: list[ArrayReading | None] = self._reading.read_tensors(arrays)
        return readings

    def hold_many(self, arrays: Sequence[object]) -> list[StorageHandle]:
        """As `hold`, for each."""
        handles: list[StorageHandle] = self._reading.hold_tensors(arrays)
        return handles

    def storage_users(self, array: object) -> int | None:
        """The reference count of the storage: tensors, those that C++ alone knows among them.

        The storage's own Python object counts as one more from the first time that anybody has asked for it, and stays.
        """
        users: int | None = self._reading.users_of_storage(array)
        return users

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """See `adapters.torch.creation_lines.trace_origins`."""
        from pytest_gpuleak.adapters.torch.creation_lines import trace_origins

        return trace_origins(torch_lookup.loaded_torch(), is_user_file)

    @cached_property
    def _reading(self) -> ModuleType:
        from pytest_gpuleak.adapters.torch import reading as torch_reading

        return torch_reading


class TorchStorages(TorchArrays):
    """Reads storages that no tensor shares: ``tensor.untyped_storage()`` kept longer than its tensor.

    A storage is given a Python object when somebody asks a tensor for it, which then lives as long as the memory. So
    those that a tensor shares say nothing: the tensor is found by itself.
    """

    name = "torch storages"

    def array_type(self) -> type | None:
        """``torch._C.StorageBase``, or None while torch is not imported. Asked after `TorchArrays`, which looks for it."""
        return torch_lookup.LOOKUP.storage_base

    def storage(self, array: object) -> int:
        """Address of the StorageImpl."""
        key: int = self._reading.storage_address(array)
        return key

    def read(self, array: object) -> ArrayReading | None:
        """Metadata of a storage; None where it owns no memory, or a tensor shares it."""
        reading: ArrayReading | None = self._reading.read_storage(array)
        return reading

    def hold(self, array: object) -> StorageHandle:
        """A C++ weak reference to the storage."""
        handle: StorageHandle = self._reading.hold_storage(array)
        return handle

    def read_many(self, arrays: Sequence[object]) -> list[ArrayReading | None]:
        """As `read`, for each."""
        return [self.read(array) for array in arrays]

    def hold_many(self, arrays: Sequence[object]) -> list[StorageHandle]:
        """As `hold`, for each."""
        return [self.hold(array) for array in arrays]

    def storage_users(self, array: object) -> int | None:
        """How many own the storage, its Python object included."""
        users: int | None = self._reading.owners_of_storage(array)
        return users

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """Note nothing: the lines are noted for tensors, and are known by the same keys."""
        del is_user_file
        return nullcontext({})
