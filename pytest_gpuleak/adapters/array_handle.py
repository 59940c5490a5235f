"""Hold an array whose memory has no object that allows weak references."""

from __future__ import annotations

import weakref


class ArrayHandle:
    """A weak hold on an array instead of its memory."""

    __slots__ = ("_array", "storage")

    def __init__(self, storage: int, array: object) -> None:
        self.storage = storage
        self._array = weakref.ref(array)

    def alive(self) -> bool:
        """Return whether the array still exists."""
        return self._array() is not None
