"""Read the ndarrays on the heap, which the collector does not track."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.numpy import memory
from pytest_gpuleak.heap.walk import is_map
from pytest_gpuleak.model.readings import MemoryRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.adapters.protocol import StorageHandle
    from pytest_gpuleak.model.readings import ArrayReading


class Ndarrays:
    """Reads `numpy.ndarray`: see `UntrackedArrays`."""

    def array_type(self) -> type | None:
        """See `UntrackedArrays`."""
        found: type | None = memory.ndarray_class()
        return found

    def sizes(self, arrays: Sequence[Any], others: Sequence[type]) -> list[tuple[int, int]]:
        """See `UntrackedArrays`."""
        array_class = memory.ndarray_class()
        bases = map(array_class.base.__get__, arrays)
        found = list(zip(map(id, arrays), map(array_class.nbytes.__get__, arrays), strict=True))
        for index in [index for index, base in enumerate(bases) if base is not None]:
            last, owner = memory.memory_of(arrays[index], array_class)
            elsewhere = _is_elsewhere(owner, others)
            found[index] = (0, 0) if elsewhere else (id(owner), memory.size_of(last, owner, array_class))
        return found

    def read(self, array: Any, others: Sequence[type]) -> ArrayReading | None:
        """See `UntrackedArrays`."""
        array_class = memory.ndarray_class()
        last, owner = memory.memory_of(array, array_class)
        if _is_elsewhere(owner, others) or (owner is last and not memory.owns_data(last, array_class)):
            return None
        return memory.read(array, array_class)

    def hold(self, array: Any) -> StorageHandle:
        """See `UntrackedArrays`."""
        return memory.hold(array, memory.ndarray_class())

    def allocated(self, array: Any) -> object:
        """See `UntrackedArrays`."""
        array_class = memory.ndarray_class()
        last, owner = memory.memory_of(array, array_class)
        return owner if memory.is_buffer(owner) else last

    def memory(self, array: Any) -> MemoryRange:
        """See `UntrackedArrays`."""
        array_class = memory.ndarray_class()
        last, _ = memory.memory_of(array, array_class)
        return MemoryRange(memory.data_address(last, array_class), int(array_class.nbytes.__get__(last)))

    def elements(self, array: Any) -> list[object]:
        """See `UntrackedArrays`."""
        return [value for _, value in memory.elements_of(array, memory.ndarray_class())]


def _is_elsewhere(owner: object, others: Sequence[type]) -> bool:
    """Tell whether memory is not the heap's: nobody's, a mapped file's, or an array's that its framework counts."""
    if owner is None or is_map(type(owner)):
        return True
    lines = type.__dict__["__mro__"].__get__(type(owner))
    return any(other in lines for other in others)
