"""Read the counters of MLX's allocator, and what settles it. MLX has one pool of memory for all of its devices."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.mlx.reading import DEVICE, call
from pytest_gpuleak.adapters.probe_protocol import DeviceProbe, DeviceReading
from pytest_gpuleak.adapters.protocol import DeviceStep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.adapters.protocol import SettleStep

_CORE: Final = "mlx.core"
_BACKENDS: Final = ("mlx.core.metal", "mlx.core.cuda")
"""Modules of the backends with an allocator of their own; without either, memory comes from ``malloc``."""


class MlxDevices(DeviceProbe):
    """The counters: active memory, which lazy graphs hold as well, and with the cache what is reserved."""

    name = "mlx"

    def __init__(self) -> None:
        self._peak_before = 0

    def read(self) -> dict[str, DeviceReading]:
        """Return the reading of the allocator; none before it has handed out memory."""
        active, cached, peak = (call(_CORE, f"get_{what}_memory") for what in ("active", "cache", "peak"))
        if None in (active, cached, peak) or (self.idle and not any((active, cached, peak))):
            return {}
        if self.idle:
            self.idle = False
            # MLX with neither Metal nor CUDA takes its memory from ``malloc``.
            self.in_heap = not any(call(module, "is_available") for module in _BACKENDS)
        # Without a reset, which the user's code would see, a peak below an earlier one is not known.
        known = peak if peak > self._peak_before else None
        return {DEVICE: DeviceReading(active, reserved=active + cached, peak=known)}

    def begin_peaks(self) -> None:
        """Note the peak so far: a higher one is a later one."""
        self._peak_before = call(_CORE, "get_peak_memory") or 0


def device_steps() -> Sequence[SettleStep]:
    """Return the step that waits for what was dispatched (``mx.async_eval``): its inputs are freed then.

    None before MLX has handed out memory, since waiting would start its threads.
    """
    if not call(_CORE, "get_peak_memory"):
        return ()
    return (DeviceStep(partial(call, _CORE, "synchronize"), "waiting for MLX"),)


def clear_cache() -> bool:
    """Free the cached buffers; tell whether there were any."""
    if not call(_CORE, "get_cache_memory"):
        return False
    call(_CORE, "clear_cache")
    return True
