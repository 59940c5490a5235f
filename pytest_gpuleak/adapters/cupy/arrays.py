"""Read CuPy's arrays without importing CuPy; `reading` is loaded by the first read."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.late_class import LateClass

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import ModuleType

    from pytest_gpuleak.adapters.protocol import OriginLog, StorageHandle
    from pytest_gpuleak.model.readings import ArrayReading, MemoryRange


class CupyArrays:
    """Reads arrays of a CuPy that the tests have imported."""

    name = "cupy"
    needs = "cupy._core.core"

    def __init__(self) -> None:
        self._class = LateClass(self.needs, "_ndarray_base", "ndarray")

    def array_type(self) -> type | None:
        """Return the C class below ``cupy.ndarray``; None until CuPy is imported."""
        return self._class.get()

    def storage(self, array: object) -> int:
        """Return the address of the memory, which views share; the array's id if it has none."""
        key: int = self._reading.storage_of(self._class.get(), array)
        return key

    def read(self, array: object) -> ArrayReading | None:
        """Return an array's metadata; None for an empty array. Memory that another array lent has no bytes here."""
        reading: ArrayReading | None = self._reading.read_array(self._class.get(), array)
        return reading

    def hold(self, array: object) -> StorageHandle:
        """Return a weak reference to the array: a view keeps the array that it was made of."""
        handle: StorageHandle = self._reading.hold_array(self._class.get(), array)
        return handle

    def storage_users(self, array: object) -> int | None:
        """Return how many pointers of arrays share the memory; None if unknown."""
        users: int | None = self._reading.users_of_memory(self._class.get(), array)
        return users

    def memory(self, array: object) -> MemoryRange | None:
        """Return where the memory behind the array is, whoever owns it."""
        found: MemoryRange | None = self._reading.memory_of(self._class.get(), array)
        return found

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """Note creating lines by a hook of the memory pools (see `adapters.cupy.creation_lines`)."""
        from pytest_gpuleak.adapters.cupy.creation_lines import trace_origins

        return trace_origins(is_user_file)

    @cached_property
    def _reading(self) -> ModuleType:
        from pytest_gpuleak.adapters.cupy import reading as cupy_reading

        return cupy_reading
