"""Read a framework's arrays by code that the first array loads: most suites have one framework."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from types import NoneType
from typing import TYPE_CHECKING, Protocol

from pytest_gpuleak.adapters.protocol import ArrayFramework

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.protocol import OriginLog, StorageHandle
    from pytest_gpuleak.model.readings import ArrayReading, MemoryRange


class _Reading(Protocol):
    def storage(self, array: object, /) -> int: ...
    def read_many(self, arrays: Sequence[object], /) -> list[ArrayReading | None]: ...
    def hold(self, array: object, /) -> StorageHandle: ...
    def memory(self, array: object, /) -> MemoryRange | None: ...
    def storage_users(self, array: object, /) -> int | None: ...


class LateArrays(ArrayFramework):
    """Arrays read by the functions of `reading`, a module or an object, which a subclass imports."""

    @property
    def reading(self) -> _Reading:
        """Return what reads the arrays."""
        raise NotImplementedError

    def storage(self, array: object) -> int:
        """Return the key of the memory behind the array."""
        return self.reading.storage(array)

    def read(self, array: object) -> ArrayReading | None:
        """Return the metadata; None if the array owns no memory."""
        return self.read_many((array,))[0]

    def read_many(self, arrays: Sequence[object]) -> list[ArrayReading | None]:
        """Return the metadata of each array."""
        return self.reading.read_many(arrays)

    def hold(self, array: object) -> StorageHandle:
        """Return a weak handle on the memory behind the array."""
        return self.reading.hold(array)

    def memory(self, array: object) -> MemoryRange | None:
        """Return where the memory behind the array is; None if it cannot be told without side effects."""
        return self.reading.memory(array)

    def storage_users(self, array: object) -> int | None:
        """Return how many share the memory behind the array; None if unknown."""
        return self.reading.storage_users(array)

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """Note nothing: the framework tells nobody when it makes an array, or the array knows its line."""
        return nullcontext({})


class ArrayHandle:
    """A weak hold on an array instead of its memory, which has no object that allows weak references."""

    __slots__ = ("array", "storage")

    def __init__(self, storage: int, array: object) -> None:
        self.storage = storage
        self.array: Callable[[], object | None]
        try:
            self.array = weakref.ref(array)
        except TypeError:  # of a class without weak references nothing is known
            self.array = NoneType

    def alive(self) -> bool:
        """Return whether the array still exists."""
        return self.array() is not None
