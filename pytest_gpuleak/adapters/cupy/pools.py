"""Find CuPy's memory pool of each device. Nothing here calls CUDA.

``MemoryPool.used_bytes()`` and the like ask CUDA for the current device, which would initialise it. A `MemoryPool` refers
to a `SingleDeviceMemoryPool` for each device once it has handed out memory: in a tuple since CuPy 14, in a dict before
(cupy/cuda/memory.pyx). Those count on the host alone.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY: Final = "cupy.cuda.memory"


def device_pools() -> Iterator[tuple[int, Any]]:
    """Yield device and pool: of CuPy's own memory pool, and of the pool that the tests have made the allocator."""
    single = safe_access.loaded_class(MEMORY, "SingleDeviceMemoryPool")
    shared = safe_access.loaded_class(MEMORY, "MemoryPool")
    if single is None or shared is None:
        return
    found = (safe_access.loaded("cupy", "_default_memory_pool"), current_allocator())
    for pool in {id(pool): pool for pool in found if type(pool) is shared}.values():
        for part in gc.get_referents(pool):
            for device, one in _numbered(part):
                if type(one) is single and type(device) is int:
                    yield device, one


def current_allocator() -> object:
    """Return the object whose method CuPy allocates with in this thread; None if unknown."""
    function = safe_access.loaded(MEMORY, "get_allocator")
    if safe_access.class_name(type(function)) not in _FUNCTIONS:  # not loaded, or a test's stand-in
        return None
    method = function()
    return getattr(method, "__self__", None) if type(method) is _METHOD else None


def used_devices() -> list[int]:
    """Return the devices whose pools have taken memory from CUDA: their contexts exist."""
    return sorted({device for device, pool in device_pools() if pool.total_bytes()})


def free_blocks() -> bool:
    """Return the pools' free blocks to their devices; tell whether a pool is in use."""
    pools = [pool for _, pool in device_pools() if pool.total_bytes()]
    for pool in pools:
        pool.free_all_blocks()
    return bool(pools)


def _numbered(part: object) -> list[tuple[object, object]]:
    if type(part) is tuple:
        return list(enumerate(part))
    return list(dict.items(part)) if safe_access.is_a(part, dict) else []  # type: ignore[arg-type] # as was just checked


_METHOD: Final[type] = type({}.get)
"""A method of a C class, such as ``MemoryPool.malloc``."""

_FUNCTIONS: Final = frozenset({"builtin_function_or_method", "cython_function_or_method"})
