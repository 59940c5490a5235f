"""Find CuPy's memory pool of each device without CUDA, read its counters, and free what CuPy caches.

The pools are in a tuple since CuPy 14, in a dict before (memory.pyx). No step initialises CUDA, or runs during a capture,
which it would end.
"""

from __future__ import annotations

from functools import partial
from gc import get_referents
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.probe_protocol import DeviceProbe, DeviceReading, total_of
from pytest_gpuleak.adapters.protocol import DeviceStep
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpuleak.adapters.protocol import SettleStep


_MEMORY: Final = "cupy.cuda.memory"
_FUNCTIONS: Final = frozenset({"builtin_function_or_method", "cython_function_or_method"})
_METHOD: Final[type] = type({}.get)
"""A method of a C class, such as ``MemoryPool.malloc``."""


def pools_by_device() -> Iterator[tuple[int, Any]]:
    """Yield device and pool: of CuPy's own memory pool, and of the pool that the tests have made the allocator."""
    allocator, own = _allocator(), safe_access.loaded("cupy", "_default_memory_pool")
    shared = safe_access.loaded_class(_MEMORY, "MemoryPool")
    for pool in (own,) if allocator is own else (own, allocator):
        if type(pool) is shared:
            for part in get_referents(pool):
                if type(part) is not _METHOD:
                    yield from _pools_in(part)


def _pools_in(part: object) -> Iterator[tuple[int, Any]]:
    single = safe_access.loaded_class(_MEMORY, "SingleDeviceMemoryPool")
    pairs: Any = ()
    if type(part) is tuple:
        pairs = enumerate(part)
    elif safe_access.is_a(part, dict):
        pairs = list(dict.items(part))  # type: ignore[arg-type] # as was just checked
    for device, pool in pairs:
        if type(pool) is single and type(device) is int:
            yield device, pool


def _allocator() -> object:
    """Return the object whose method CuPy allocates with in this thread; None if unknown."""
    find: Any = safe_access.loaded(_MEMORY, "get_allocator")
    if safe_access.class_name(type(find)) not in _FUNCTIONS:  # a test may have put a stand-in there
        return None
    method = find()
    return getattr(method, "__self__", None) if type(method) is _METHOD else None


class CupyDevices(DeviceProbe):
    """The counters of CuPy's memory pools, without a call to CUDA; other allocators are not counted."""

    name = "cupy"

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def read(self) -> dict[str, DeviceReading]:
        """Return the readings: ``used_bytes()`` would walk over each block, so the free blocks are subtracted."""
        readings: dict[str, DeviceReading] = {}
        for device, pool in pools_by_device():
            total = int(pool.total_bytes())
            if total or device in self._seen:
                self._seen.add(device)
                reading = DeviceReading(max(total - int(pool.free_bytes()), 0), reserved=total)
                name = f"cuda:{device}"
                readings[name] = total_of(readings[name], reading) if name in readings else reading
        self.idle = not readings
        if type(_allocator()) is safe_access.loaded_class(_MEMORY, "MemoryAsyncPool"):
            self.absent = {"cuda": "CuPy allocates with MemoryAsyncPool, whose figures take calls to CUDA"}
        elif self.absent:
            self.absent = {}
        return readings


def used_devices() -> list[int]:
    """Return the devices whose pools have taken memory from CUDA: their contexts exist."""
    return sorted({device for device, pool in pools_by_device() if pool.total_bytes()})


def free_blocks() -> bool:
    """Return the pools' free blocks to their devices; tell whether a pool is in use."""
    pools = [pool for _, pool in pools_by_device() if pool.total_bytes()]
    for pool in pools:
        pool.free_all_blocks()
    return bool(pools)


def device_steps() -> Sequence[SettleStep]:
    """Return the steps, cheapest first; none before CuPy has taken memory from a device."""
    if not used_devices():
        return ()
    return (
        DeviceStep(partial(_on_used_devices, lambda device: device.synchronize()), "waiting for CuPy's device"),
        DeviceStep(partial(_on_used_devices, clear_plans), "clearing CuPy's FFT plans"),
        DeviceStep(partial(_on_used_devices, _free_pinned), "freeing CuPy's pinned memory"),
        DeviceStep(partial(_on_used_devices, lambda _: free_blocks()), "freeing CuPy's free blocks"),
    )


def _on_used_devices(act: Callable[[Any], object]) -> None:
    """Act on each device in use. Raises CuPy's errors, and RuntimeError during a capture."""
    cuda = safe_access.loaded("cupy", "cuda")
    if cuda.get_current_stream().is_capturing():
        raise RuntimeError("the capture would end")
    for index in used_devices():
        device = cuda.Device(index)
        with device:
            act(device)


def clear_plans(_: Any) -> None:
    """Clear the current thread's FFT plans for the current device, with their work areas."""
    plans = safe_access.loaded("cupy.fft._cache", "get_plan_cache")
    if plans is not None:
        plans().clear()


def _free_pinned(_: Any) -> None:
    pool = safe_access.loaded("cupy", "_default_pinned_memory_pool")
    if pool is not None:
        pool.free_all_blocks()
