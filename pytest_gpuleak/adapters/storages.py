"""Objects that stand for memory itself, such as ``tensor.untyped_storage()``: they count only where no array shares it.

Such an object is made when a test asks an array for it, and then lives as long as the memory. One that an array shares
says nothing: the array is found by itself.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.arrays import array_types, framework_of, select_arrays
from pytest_gpuleak.heap.classes import is_kind_of
from pytest_gpuleak.heap.collector import get_objects, whole_heap

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pytest_gpuleak.adapters.protocol import ArrayFramework


def is_storage(array: object, types: Sequence[type]) -> bool:
    """Whether an array is of one of these types of storages."""
    return any(is_kind_of(type(array), kind) for kind in types)


def are_shared_storages(arrays: Sequence[object], storages: Sequence[ArrayFramework]) -> bool:
    """Whether there is nothing among the arrays but storages that an array shares, old or found by itself."""
    types = array_types(storages)
    return all(is_storage(array, types) and not _owns_alone(array, storages) for array in arrays)


def find_storages(keys: Collection[int], storages: Sequence[ArrayFramework]) -> list[object]:
    """Return the storages alive anywhere on the heap that have these keys, and that no array shares."""
    types = array_types(storages)
    if not types:
        return []
    with whole_heap():
        found = select_arrays(get_objects(), types)
    return [
        array
        for array in found
        if _owns_alone(array, storages) and framework_of(array, storages).storage(array) in keys
    ]


class SharedStorages:
    """The storages among a test's arrays that an array shares, held weakly: the array may go while they settle.

    Args:
        arrays: what the test left.
        storages: read them.
    """

    def __init__(self, arrays: list[object], storages: Sequence[ArrayFramework]) -> None:
        types = array_types(storages)
        found = select_arrays(arrays, types) if types else []
        self._storages = storages
        self._references: list[weakref.ref[Any]] = []
        for storage in found:
            if not _owns_alone(storage, storages):
                with suppress(TypeError):  # a type without weak references: it is found again with the next run
                    self._references.append(weakref.ref(storage))

    def left(self) -> Iterator[object]:
        """Yield those that outlived the arrays they were shared with."""
        for reference in self._references:
            storage = reference()
            if storage is not None and _owns_alone(storage, self._storages):
                yield storage


def _owns_alone(storage: object, storages: Sequence[ArrayFramework]) -> bool:
    return framework_of(storage, storages).storage_users(storage) == 1
