"""Read MLX's arrays without importing MLX; `reading` is loaded by the first read."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.late_class import LateClass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.mlx.reading import MlxReading
    from pytest_gpuleak.adapters.protocol import OriginLog, StorageHandle
    from pytest_gpuleak.model.readings import ArrayReading, MemoryRange


class MlxArrays:
    """Reads arrays of an MLX that the tests have imported. Never evaluates an array."""

    name = "mlx"
    needs = "mlx.core"

    def __init__(self) -> None:
        self._class = LateClass(self.needs, "array")

    def array_type(self) -> type | None:
        """Return ``mlx.core.array``; None until MLX is imported."""
        return self._class.get()

    def storage(self, array: object) -> int:
        """Return the key of the buffer, which views share; the array's id if it was not evaluated."""
        return self._reading.storage_many([array])[0]

    def storage_many(self, arrays: Sequence[object]) -> list[int]:
        """Return the key of the buffer behind each array."""
        return self._reading.storage_many(arrays)

    def read(self, array: object) -> ArrayReading | None:
        """Return an array's metadata; None for an empty array, and for the state of the random generator."""
        return self._reading.read_many([array])[0]

    def read_many(self, arrays: Sequence[object]) -> list[ArrayReading | None]:
        """Return the metadata of each array."""
        return self._reading.read_many(arrays)

    def hold(self, array: object) -> StorageHandle:
        """Return a weak reference to the array."""
        return self._reading.hold(array)

    def memory(self, array: object) -> MemoryRange | None:
        """Return where the elements of an evaluated array are."""
        return self._reading.memory(array)

    def storage_users(self, array: object) -> int | None:
        """Return None: a view has a reference to its buffer in C++."""
        del array
        return None

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """Note nothing: MLX tells nobody when it makes an array."""
        del is_user_file
        return nullcontext({})

    @cached_property
    def _reading(self) -> MlxReading:
        from pytest_gpuleak.adapters.mlx.reading import MlxReading

        return MlxReading(self._class)
