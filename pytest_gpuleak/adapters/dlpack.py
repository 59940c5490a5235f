"""Find who keeps an array through DLPack, by the address of its memory, which a C structure states (dlpack.h).

The collector sees neither a capsule's array (``tensor.__dlpack__()``) nor that of ``numpy.from_dlpack(tensor)``.
"""

from __future__ import annotations

import bisect
import ctypes
import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuleak.adapters.arrays import array_types, framework_of
from pytest_gpuleak.adapters.bulk import memory_of_arrays
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.hidden_references import Link, lead_through_dicts
from pytest_gpuleak.heap.interpreter import c_function
from pytest_gpuleak.heap.library_types import extension_class
from pytest_gpuleak.heap.safe_access import is_subclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.adapters.protocol import ArrayFramework
    from pytest_gpuleak.heap.budget import Budget

_MAX_BASES: Final = 16

EDGE: Final = " (memory)"
"""How the reference from a capsule to the array is written: no Python expression leads through a capsule."""

_CAPSULE: Final = type(datetime.datetime_CAPI)
"""The class of all capsules."""

_NAMES: Final = {b"dltensor": 0, b"dltensor_versioned": 32}
"""Names of unused capsules, and where their DLTensor begins. A used capsule's structure is freed by its user."""


class _DLTensor(ctypes.Structure):
    """The structure of that name, the same in all versions of dlpack.h up to 1."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


def lent_memory(
    frameworks: Frameworks, orphans: Sequence[object], extra: Sequence[object], budget: Budget
) -> list[Link]:
    """Find capsules, arrays over capsules, and other frameworks' arrays, whose memory is an orphan's (see `HeapFinder`)."""
    storages = frameworks.storages
    arrays = [one for one in frameworks.arrays if one not in storages]  # a storage object keeps no array
    wanted = _Wanted(orphans, arrays)
    if not wanted.ranges:
        return []
    # Arrays of one framework that share memory refer to it, and not to each other.
    others = [one for one in arrays if any(block.framework is not one for block in wanted.ranges)]
    borrowers = _Borrowers(others, wanted)
    led = lead_through_dicts(orphans, extra, borrowers.may_borrow, borrowers.leads_to_wanted, budget)
    return borrowers.links + led


class _Block(NamedTuple):
    start: int
    end: int
    array: object
    framework: ArrayFramework


class _Wanted:
    def __init__(self, orphans: Sequence[object], arrays: Sequence[ArrayFramework]) -> None:
        types = array_types(arrays)
        known = (value for value in orphans if any(is_subclass(type(value), kind) for kind in types))
        self.ranges = [
            _Block(memory.start, memory.start + memory.size, array, framework_of(array, arrays))
            for array, memory in memory_of_arrays(known, arrays)
        ]
        self.ranges.sort(key=lambda block: block.start)
        self._starts = [block.start for block in self.ranges]
        self._longest = max((block.end - block.start for block in self.ranges), default=0)

    def at(self, address: int) -> list[_Block]:
        first = bisect.bisect_right(self._starts, address - self._longest)
        last = bisect.bisect_right(self._starts, address)
        return [block for block in self.ranges[max(first - 1, 0) : last] if block.start <= address < block.end]


class _Borrowers:
    """Follows objects that may have borrowed memory to the wanted arrays; collects the `links` found."""

    def __init__(self, arrays: Sequence[ArrayFramework], wanted: _Wanted) -> None:
        self.links: list[Link] = []
        self._arrays = arrays
        self._types = array_types(arrays)
        self._wanted = wanted
        self._ids = {id(block.array) for block in wanted.ranges}
        self._numpy = extension_class("numpy", "ndarray")
        self._linked: set[int] = set()

    def may_borrow(self, kind: type) -> bool:
        bases = self._types if self._numpy is None else [*self._types, self._numpy]
        return kind is _CAPSULE or any(is_subclass(kind, base) for base in bases)

    def leads_to_wanted(self, value: object) -> bool:
        if id(value) in self._linked:
            return True
        found = self._lent_to(value)
        for block in found:
            self.links.append(Link(value, block.array, EDGE))
        if found:
            self._linked.add(id(value))
        return bool(found)

    def _lent_to(self, value: object) -> list[_Block]:
        if id(value) in self._ids:
            return []
        if type(value) is _CAPSULE:
            address = capsule_address(value)
        elif self._numpy is not None and is_subclass(type(value), self._numpy):
            address = self._array_address(value)
        else:
            framework = framework_of(value, self._arrays)
            memory = next((memory for _, memory in memory_of_arrays((value,), [framework])), None)
            return [] if memory is None else [b for b in self._wanted.at(memory.start) if b.framework is not framework]
        return [] if address is None else self._wanted.at(address)

    def _array_address(self, array: object) -> int | None:
        """Return where the memory of a NumPy array over a capsule begins; None for any other array."""
        assert self._numpy is not None
        base: object = array
        for _ in range(_MAX_BASES):
            base = safe_access.slot(base, self._numpy, "base")
            if type(base) is _CAPSULE:
                interface = safe_access.slot(array, self._numpy, "__array_interface__")
                return int(interface["data"][0]) if type(interface) is dict else None
            if not is_subclass(type(base), self._numpy):
                return None
        return None


def capsule_address(capsule: object) -> int | None:
    """Return where the memory of an unused DLPack capsule begins; None for any other capsule."""
    name = c_function("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)(capsule)
    if name not in _NAMES:
        return None
    pointer = c_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    tensor = _DLTensor.from_address(pointer(capsule, name) + _NAMES[name])
    return int(tensor.data or 0) + int(tensor.byte_offset)
