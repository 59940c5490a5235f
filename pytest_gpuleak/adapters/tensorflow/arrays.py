"""Read TensorFlow's eager tensors without importing it (see `lookup`); `reading` is loaded by the first read."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.tensorflow.lookup import LOOKUP, OPS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    from pytest_gpuleak.adapters.protocol import OriginLog, StorageHandle
    from pytest_gpuleak.model.readings import ArrayReading, MemoryRange


class TensorFlowArrays:
    """Reads eager tensors. A variable is read through its handle, an eager tensor of the dtype `resource`."""

    name = "tensorflow"
    needs = OPS

    def array_type(self) -> type | None:
        """Return the class of eager tensors; None until TensorFlow is imported."""
        return LOOKUP.tensor_class()

    def storage(self, array: object) -> int:
        """Return the address of a tensor's numbers where the host has them; else the tensor's id."""
        key: int = self._reading.storage_of(array)
        return key

    def read(self, array: object) -> ArrayReading | None:
        """Return a tensor's metadata; None where its size is unknown (datasets, tables) or nothing."""
        reading: ArrayReading | None = self._reading.read_tensors((array,))[0]
        return reading

    def hold(self, array: object) -> StorageHandle:
        """Return a weak reference to the tensor, with the key of its memory."""
        handle: StorageHandle = self._reading.TensorReference(array)
        return handle

    def read_many(self, arrays: Sequence[object]) -> list[ArrayReading | None]:
        """Return the metadata of each tensor; the value of one of the variables has the key of the variable."""
        readings: list[ArrayReading | None] = self._reading.read_tensors(arrays)
        return readings

    def memory(self, array: object) -> MemoryRange | None:
        """Return where the numbers of a tensor, or of a variable, are on the host; None elsewhere."""
        found: MemoryRange | None = self._reading.memory_of(array)
        return found

    def storage_users(self, array: object) -> int | None:
        """Return 1 for a variable and for memory that is known by the tensor alone; None for other tensors."""
        users: int | None = self._reading.users_of_storage(array)
        return users

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """Note creating lines by a callback of each eager operation (see `adapters.tensorflow.operations`)."""
        from pytest_gpuleak.adapters.tensorflow.operations import trace_origins

        return trace_origins(is_user_file)

    @cached_property
    def _reading(self) -> ModuleType:
        from pytest_gpuleak.adapters.tensorflow import reading

        return reading
