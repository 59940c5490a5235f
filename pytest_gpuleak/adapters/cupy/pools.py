"""Find CuPy's memory pool of each device without CUDA: in a tuple since CuPy 14, in a dict before (memory.pyx)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.probe_protocol import DeviceProbe, DeviceReading, total_of
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.referrers import get_referents

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEMORY: Final = "cupy.cuda.memory"
_FUNCTIONS: Final = frozenset({"builtin_function_or_method", "cython_function_or_method"})
_METHOD: Final[type] = type({}.get)
"""A method of a C class, such as ``MemoryPool.malloc``."""


class Pools:
    """The pools of the loaded CuPy, whose classes are looked up once: they are asked for before and after each test."""

    def __init__(self) -> None:
        self._module: object = None
        self._names: dict[str, Any] = {}
        self._single: type | None = None
        self._shared: type | None = None
        self._asynchronous: type | None = None
        self._find_allocator: Any = None

    def by_device(self) -> Iterator[tuple[int, Any]]:
        """Yield device and pool: of CuPy's own memory pool, and of the pool that the tests have made the allocator."""
        allocator = self._allocator()
        if self._single is None or self._shared is None:
            return
        own = safe_access.loaded("cupy", "_default_memory_pool")
        for pool in (own,) if allocator is own else (own, allocator):
            if type(pool) is self._shared:
                for part in get_referents(pool):
                    if type(part) is not _METHOD:
                        yield from self._pools_in(part)

    def allocates_asynchronously(self) -> bool:
        """Return whether CuPy's current allocator is the pool of ``cudaMallocAsync``, whose figures take calls to CUDA."""
        return self._asynchronous is not None and type(self._allocator()) is self._asynchronous

    def _pools_in(self, part: object) -> Iterator[tuple[int, Any]]:
        pairs: Any = ()
        if type(part) is tuple:
            pairs = enumerate(part)
        elif safe_access.is_a(part, dict):
            pairs = list(dict.items(part))  # type: ignore[arg-type] # as was just checked
        for device, pool in pairs:
            if type(pool) is self._single and type(device) is int:
                yield device, pool

    def _allocator(self) -> object:
        """Return the object whose method CuPy allocates with in this thread; None if unknown."""
        module = sys.modules.get(_MEMORY)
        if module is not self._module:
            self._look_up(module)
        is_own = self._names.get("get_allocator") is self._find_allocator  # a test may have put a stand-in there
        if self._find_allocator is None or not is_own:
            return None
        method = self._find_allocator()
        return getattr(method, "__self__", None) if type(method) is _METHOD else None

    def _look_up(self, module: object) -> None:
        names = self._names = safe_access.module_dict(module) or {}
        self._module = module
        kinds = (names.get(f"{name}Pool") for name in ("SingleDeviceMemory", "Memory", "MemoryAsync"))
        self._single, self._shared, self._asynchronous = (one if safe_access.is_a(one, type) else None for one in kinds)
        find = names.get("get_allocator")
        self._find_allocator = find if safe_access.class_name(type(find)) in _FUNCTIONS else None


class CupyDevices(DeviceProbe):
    """The counters of CuPy's memory pools, without a call to CUDA; other allocators are not counted."""

    name = "cupy"

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._pools = Pools()

    def read(self) -> dict[str, DeviceReading]:
        """Return the readings: ``used_bytes()`` would walk over each block, so the free blocks are subtracted."""
        readings: dict[str, DeviceReading] = {}
        for device, pool in self._pools.by_device():
            total = int(pool.total_bytes())
            if total or device in self._seen:
                self._seen.add(device)
                reading = DeviceReading(max(total - int(pool.free_bytes()), 0), reserved=total)
                name = f"cuda:{device}"
                readings[name] = total_of(readings[name], reading) if name in readings else reading
        self.idle = not readings
        if self._pools.allocates_asynchronously():
            self.absent = {"cuda": "CuPy allocates with MemoryAsyncPool, whose figures take calls to CUDA"}
        elif self.absent:
            self.absent = {}
        return readings


def used_devices() -> list[int]:
    """Return the devices whose pools have taken memory from CUDA: their contexts exist."""
    return sorted({device for device, pool in Pools().by_device() if pool.total_bytes()})


def free_blocks() -> bool:
    """Return the pools' free blocks to their devices; tell whether a pool is in use."""
    pools = [pool for _, pool in Pools().by_device() if pool.total_bytes()]
    for pool in pools:
        pool.free_all_blocks()
    return bool(pools)
