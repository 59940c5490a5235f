"""Read the counters of MLX's allocator, and what settles it. MLX has one pool of memory for all of its devices."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.mlx.native import CheckedFunctions, call
from pytest_gpuleak.adapters.mlx.reading import DEVICE
from pytest_gpuleak.adapters.probe_protocol import DeviceProbe, DeviceReading

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuleak.adapters.protocol import SettleStep

_CORE: Final = "mlx.core"
_BACKENDS: Final = ("mlx.core.metal", "mlx.core.cuda")
"""Modules of the backends with an allocator of their own; without either, memory comes from ``malloc``."""


class MlxDevices(DeviceProbe):
    """The counters: active memory, which lazy graphs hold as well, and with the cache what is reserved."""

    name = "mlx"

    def __init__(self) -> None:
        self._figures = CheckedFunctions(_CORE, "get_active_memory", "get_cache_memory", "get_peak_memory")
        self._peak_before = 0

    def read(self) -> dict[str, DeviceReading]:
        """Return the reading of the allocator; none before it has handed out memory."""
        figures = self._figures.call()
        if figures is None or (self.idle and not any(figures)):
            return {}
        active, cached, peak = figures
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


@dataclasses.dataclass(frozen=True)
class WaitForMlx:
    """Wait for what was dispatched (``mx.async_eval``): its inputs are freed then."""

    what: str = "waiting for MLX"
    collects: bool = False

    def steps(self) -> Iterator[None]:
        """Wait once."""
        call(_CORE, "synchronize")
        yield


def device_steps() -> Sequence[SettleStep]:
    """Return the steps; none before MLX has handed out memory, since waiting would start its threads."""
    return (WaitForMlx(),) if call(_CORE, "get_peak_memory") else ()


def clear_cache() -> bool:
    """Free the cached buffers; tell whether there were any."""
    if not call(_CORE, "get_cache_memory"):
        return False
    call(_CORE, "clear_cache")
    return True
