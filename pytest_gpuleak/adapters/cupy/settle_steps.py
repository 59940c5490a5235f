"""Free device memory that CuPy caches. No step initialises CUDA, or runs during a capture, which it would end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.cupy.pools import free_blocks, used_devices
from pytest_gpuleak.adapters.device_step import DeviceStep
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuleak.adapters.protocol import SettleStep


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
