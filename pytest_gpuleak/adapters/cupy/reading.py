"""Read CuPy's arrays by the descriptors of their C class. Nothing here calls CUDA: an array knows its pointer and size."""

from __future__ import annotations

import gc
from typing import Any, Final

from pytest_gpuleak.adapters.array_handle import ArrayHandle
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.reference_counts import getrefcount
from pytest_gpuleak.model.readings import ArrayReading, MemoryRange

_LENT: Final = "DLPackMemory"
"""CuPy's class for memory that ``cupy.from_dlpack`` took from another array (cupy/_core/dlpack.pyx)."""

_BORROWED: Final = "UnownedMemory"
_INTERFACE: Final = "__cuda_array_interface__"
"""The attribute by which another library's array lends its memory (``cupy.asarray(tensor)``)."""

_USERS_OF_OURS: Final = 2
"""References to the memory that asking adds: the variable and the argument of `getrefcount`."""


def storage_of(base: Any, array: object) -> int:
    """Return the address of the memory behind an array; the array's id without an address."""
    memory = _memory(base, array)
    return (0 if memory is None else int(memory.ptr)) or id(array)


def hold_array(base: Any, array: object) -> ArrayHandle:
    """Return a weak hold on an array."""
    return ArrayHandle(storage_of(base, array), array)


def read_array(base: Any, array: object) -> ArrayReading | None:
    """Return an array's metadata; None for an empty array. Memory that another array lent counts as that array's."""
    try:
        memory = _memory(base, array)
        size = int(base.nbytes.__get__(array))
        if memory is None or not memory.ptr or not size:
            return None
        whole = 0 if _is_lent(memory) else int(memory.size) or size  # memory of the user's may come without a size
        shape = tuple(int(length) for length in base.shape.__get__(array))
        dtype = str(base.dtype.__get__(array))
        device = f"cuda:{int(memory.device_id)}"
        return ArrayReading(id(array), shape, dtype, device, min(size, whole or size), int(memory.ptr), whole)
    except Exception:  # noqa: BLE001 - an array whose memory was taken away: nothing is known of it
        return None


def users_of_memory(base: Any, array: object) -> int | None:
    """Return how many pointers share the memory behind an array: each array has one."""
    memory = _memory(base, array)
    return None if memory is None else getrefcount(memory) - _USERS_OF_OURS


def memory_of(base: Any, array: object) -> MemoryRange | None:
    """Return address and bytes of the memory behind an array."""
    memory = _memory(base, array)
    if memory is None or not memory.ptr:
        return None
    return MemoryRange(int(memory.ptr), int(memory.size) or int(base.nbytes.__get__(array)))


def _memory(base: Any, array: object) -> Any:
    try:
        return base.data.__get__(array).mem
    except Exception:  # noqa: BLE001 - an array that was never initialised has no pointer
        return None


def _is_lent(memory: Any) -> bool:
    """Return whether another array owns the memory: that array is found on its own."""
    name = safe_access.class_name(type(memory))
    if name != _BORROWED:
        return name == _LENT
    return any(safe_access.find_in_class(type(owner), _INTERFACE) is not None for owner in gc.get_referents(memory))
