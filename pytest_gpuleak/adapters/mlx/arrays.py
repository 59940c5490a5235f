"""Read MLX's arrays without importing MLX."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.late_arrays import LateArrays
from pytest_gpuleak.adapters.late_class import LateClass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.adapters.mlx.reading import MlxReading


class MlxArrays(LateArrays):
    """Reads arrays of an MLX that the tests have imported. Never evaluates an array."""

    name = "mlx"
    needs = "mlx.core"

    def __init__(self) -> None:
        self._class = LateClass(self.needs, "array")

    def array_type(self) -> type | None:
        """Return ``mlx.core.array``; None until MLX is imported."""
        return self._class.get()

    def storage_many(self, arrays: Sequence[object]) -> list[int]:
        """Return the key of the buffer behind each array."""
        return self.reading.storage_many(arrays)

    @cached_property
    def reading(self) -> MlxReading:
        """Return what reads the arrays."""
        from pytest_gpuleak.adapters.mlx.reading import MlxReading

        return MlxReading(self._class)
