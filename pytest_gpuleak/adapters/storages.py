"""Find objects that stand for memory itself, such as ``tensor.untyped_storage()``, and that no array shares."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.arrays import array_types, framework_of, select_arrays
from pytest_gpuleak.heap.collector import get_objects, whole_heap
from pytest_gpuleak.heap.safe_access import is_subclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pytest_gpuleak.adapters.protocol import ArrayFramework


def is_storage(array: object, types: Sequence[type]) -> bool:
    """Return whether an array is of one of these storage types."""
    return any(is_subclass(type(array), kind) for kind in types)


def are_shared_storages(arrays: Sequence[object], storages: Sequence[ArrayFramework]) -> bool:
    """Return whether all these arrays are storages that another array shares."""
    types = array_types(storages)
    return all(is_storage(array, types) and not _owns_alone(array, storages) for array in arrays)


def find_storages(keys: Collection[int], storages: Sequence[ArrayFramework]) -> list[object]:
    """Walk the heap and return the storages with these keys that no array shares."""
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
    """The storages among a test's arrays that an array shares, held weakly: it may die while they settle."""

    def __init__(self, arrays: list[object], storages: Sequence[ArrayFramework]) -> None:
        types = array_types(storages)
        found = select_arrays(arrays, types) if types else []
        self._storages = storages
        self._references: list[weakref.ref[Any]] = []
        for storage in found:
            if not _owns_alone(storage, storages):
                with suppress(TypeError):  # a type without weak references: the next run finds it again
                    self._references.append(weakref.ref(storage))

    def left(self) -> Iterator[object]:
        """Yield the storages that outlived the arrays they were shared with."""
        for reference in self._references:
            storage = reference()
            if storage is not None and _owns_alone(storage, self._storages):
                yield storage


def _owns_alone(storage: object, storages: Sequence[ArrayFramework]) -> bool:
    return framework_of(storage, storages).storage_users(storage) == 1
