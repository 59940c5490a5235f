"""Free device memory that CuPy caches. No step initialises CUDA, or runs during a capture, which it would end."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.cupy.pools import free_blocks, used_devices
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpuleak.adapters.protocol import SettleStep


@dataclasses.dataclass(frozen=True)
class _CupyStep:
    """A step for the devices in use; `what` says in words what `act`, given ``cupy.cuda`` and a device, waits for."""

    what: str
    act: Callable[[Any, int], None]
    collects: bool = False

    def steps(self) -> Iterator[None]:
        """Act once on each device in use."""
        cuda = safe_access.loaded("cupy", "cuda")
        try:
            if cuda.get_current_stream().is_capturing():
                return
            for device in used_devices():
                with cuda.Device(device):
                    self.act(cuda, device)
        except Exception:  # noqa: BLE001 - the next reading reports a failed device
            return
        yield


def device_steps() -> Sequence[SettleStep]:
    """Return the steps, cheapest first; none before CuPy has taken memory from a device."""
    if not used_devices():
        return ()
    return (
        _CupyStep("waiting for CuPy's device", synchronize),
        _CupyStep("clearing CuPy's FFT plans", clear_plans),
        _CupyStep("freeing CuPy's pinned memory", _free_pinned),
        _CupyStep("freeing CuPy's free blocks", _free_blocks),
    )


def synchronize(cuda: Any, device: int) -> None:
    """Wait for a device: what is on its way out is freed then."""
    cuda.Device(device).synchronize()


def clear_plans(cuda: Any, device: int) -> None:
    """Clear the current thread's FFT plans for the current device, with their work areas."""
    del cuda, device
    plans = safe_access.loaded("cupy.fft._cache", "get_plan_cache")
    if plans is not None:
        plans().clear()


def _free_pinned(cuda: Any, device: int) -> None:
    del cuda, device
    pool = safe_access.loaded("cupy", "_default_pinned_memory_pool")
    if pool is not None:
        pool.free_all_blocks()


def _free_blocks(cuda: Any, device: int) -> None:
    del cuda, device
    free_blocks()
