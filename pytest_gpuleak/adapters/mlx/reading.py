"""Read MLX's arrays, which are lazy: an array that was not evaluated has no memory, but keeps the inputs of its graph.

``mlx.core.get_array_buffer_size`` (since MLX 0.32) raises for such an array, and counts a shared buffer once. In older
versions every array counts as evaluated, with a buffer of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.buffer_protocol import memory_of
from pytest_gpuleak.adapters.late_arrays import ArrayHandle
from pytest_gpuleak.adapters.mlx.buffers import Buffers
from pytest_gpuleak.adapters.mlx.native import call, current_key
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.model.readings import NOT_EVALUATED, ArrayReading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.adapters.late_class import LateClass
    from pytest_gpuleak.adapters.protocol import StorageHandle
    from pytest_gpuleak.model.readings import MemoryRange

DEVICE: Final = "mlx"
"""Name of the only device: MLX's arrays lie in memory that the processor and the graphics processor share."""

_PREFIX: Final = "mlx.core."


class MlxReading:
    """Reads arrays of the class that `found` finds, by the class's own properties."""

    def __init__(self, found: LateClass) -> None:
        self._class = found
        self._buffers = Buffers()

    def storage(self, array: object) -> int:
        """Return the key of the buffer behind an array."""
        return self.storage_many([array])[0]

    def storage_many(self, arrays: Sequence[object]) -> list[int]:
        """Return the key of the buffer behind each array; its id if it was not evaluated."""
        return [key for key, _ in self._buffers.of(arrays)]

    def hold(self, array: object) -> StorageHandle:
        """Return a weak hold on an array."""
        return ArrayHandle(self.storage(array), array)

    def read_many(self, arrays: Sequence[object]) -> list[ArrayReading | None]:
        """Return the metadata of each array; None for one without memory to come, and for the generator's state."""
        state = current_key()  # it belongs to no test
        found = []
        for array, (key, size) in zip(arrays, self._buffers.of(arrays), strict=True):
            try:
                found.append(None if array is state else self._read(array, key, size))
            except Exception:  # noqa: BLE001 - nothing is known of an array that cannot tell
                found.append(None)
        return found

    def memory(self, array: object) -> MemoryRange | None:
        """Return where an array's elements are; None before they are computed, and where asking would move them."""
        if self._buffers.of([array])[0][1] is None or call("mlx.core.cuda", "is_available"):
            return None
        return memory_of(array)

    def storage_users(self, array: object) -> int | None:
        """Return None: a view has a reference to its buffer in C++."""
        return None

    def _read(self, array: object, key: int, size: int | None) -> ArrayReading | None:
        nbytes = int(self._get(array, "nbytes"))
        if not nbytes:
            return None
        shape = tuple(int(length) for length in self._get(array, "shape"))
        dtype = str(self._get(array, "dtype")).removeprefix(_PREFIX)
        if size is None:
            return ArrayReading(id(array), shape, dtype + NOT_EVALUATED, DEVICE, 0, key, 0, pending=True)
        return ArrayReading(id(array), shape, dtype, DEVICE, min(nbytes, size), key, size)

    def _get(self, array: object, name: str) -> Any:
        """Read a property as the class has it: a subclass of the user's may define its own."""
        return safe_access.slot(array, self._class.get() or type(array), name)
