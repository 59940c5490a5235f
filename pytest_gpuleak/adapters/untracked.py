"""Define what the engine needs to know arrays that the collector does not track: NumPy's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.adapters.late import ArrayHandle
    from pytest_gpuleak.model.readings import ArrayReading, MemoryRange

LEAST_HELD: Final = 64 * 1024
"""Bytes of an array from which its memory is followed: malloc hands out the same address again for an array alike."""


class UntrackedArrays(Protocol):
    """Arrays that the collector does not track, so that no epoch shows them: a walk over the heap finds them.

    No method may import the framework or run code that a user's subclass defines. `others` are the array types whose
    memory is counted by their own frameworks: an array that views it has no memory of its own.
    """

    def array_type(self) -> type | None:
        """Return the base class of the arrays, or None until the tests have imported the framework."""

    def sizes(self, arrays: Sequence[Any], others: Sequence[type]) -> list[tuple[int, int]]:
        """Return the key and the bytes of the memory behind each array; 0 and 0 without memory on the heap. Cheap."""

    def read(self, array: Any, others: Sequence[type]) -> ArrayReading | None:
        """Return the metadata; None if the array has no memory on the heap."""

    def hold(self, array: Any) -> ArrayHandle:
        """Return a weak handle on the memory behind the array."""

    def allocated(self, array: Any) -> object:
        """Return the object that was made together with the memory, of which `tracemalloc` knows the line."""

    def memory(self, array: Any) -> MemoryRange:
        """Return where the memory behind the array is."""

    def elements(self, array: Any) -> list[object]:
        """Return the elements of an array of Python objects; empty for other arrays, and for very large ones."""


class MetArrays(NamedTuple):
    """What a look at the heap has met: the bytes of memory behind arrays, and weak `handles` on what is large, by its key.

    Later memory may have the same address.
    """

    sizes: dict[int, int]
    handles: dict[int, ArrayHandle]

    def add(self, reader: UntrackedArrays, arrays: Sequence[Any], sizes: Sequence[tuple[int, int]]) -> None:
        """Add arrays, of which the `reader` has returned these keys and `sizes`."""
        self.sizes.update(sizes)
        large = ((array, key) for array, (key, size) in zip(arrays, sizes, strict=True) if size >= LEAST_HELD)
        self.handles.update((key, reader.hold(array)) for array, key in large)

    def alive(self) -> dict[int, int]:
        """Return the bytes of the memory that is not known to be gone, by its key."""
        return {key: size for key, size in self.sizes.items() if key not in self.handles or self.handles[key].alive()}
