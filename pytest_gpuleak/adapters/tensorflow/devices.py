"""Read the memory of TensorFlow's allocators: of GPUs, and of its pool on the CPU. TensorFlow is looked up, never imported.

The figures are those of `tf.config.experimental.get_memory_info`, which itself would initialise a context. Peaks of GPUs
are not read: restarting them (`reset_memory_stats`) would change what the tests read.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.probe_protocol import DeviceProbe, DeviceReading
from pytest_gpuleak.adapters.protocol import DeviceStep
from pytest_gpuleak.adapters.tensorflow.lookup import CONTEXT, eager_context, memory_info

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.protocol import SettleStep


_GPU = "GPU"


class TensorFlowDevices(DeviceProbe):
    """The counters of TensorFlow's GPUs."""

    name = "tensorflow"

    def __init__(self) -> None:
        self._without_gpus: object = None

    def read(self) -> dict[str, DeviceReading]:
        """Return the readings of the GPUs of the context that the tests have initialised."""
        readings: dict[str, DeviceReading] = {}
        if CONTEXT not in sys.modules:
            return readings
        listed = _listed_devices()
        if listed is not None and listed is self._without_gpus:
            return readings
        absent: dict[str, str] = {}
        devices = _gpus()
        self.idle = not devices
        # TensorFlow makes another list where it initialises its context anew.
        self._without_gpus = listed if self.idle else None
        if devices:
            context = eager_context()
            for index in devices:
                current = memory_info(context, f"{_GPU}:{index}").get("current")
                if type(current) is int and current >= 0:
                    readings[f"gpu:{index}"] = DeviceReading(allocated=current)
                else:
                    absent[f"gpu:{index}"] = "its counters are out of range"
        self.absent = absent
        return readings


def background_steps() -> list[SettleStep]:
    """Return the step that waits for background operations, on a GPU or in an executor of its own, which hold their tensors.

    An operation's error, which the wait would raise, is left to the test that asks for its result.
    `tf.keras.backend.clear_session()` drops the state of living models: only the user's hook may call it.
    """
    context: Any = eager_context()
    try:
        return [DeviceStep(context.sync_executors)] if _gpus() or context.is_async() else []
    except Exception:  # noqa: BLE001 - another version: nothing is known to wait for
        return []


def _listed_devices() -> Any:
    context: Any = eager_context()
    return None if context is None else vars(context).get("_logical_devices")


def _gpus() -> list[int]:
    found: Any = _listed_devices() or ()
    return [int(one.name.rpartition(":")[2]) for one in found if one.device_type == _GPU]


LEAST: Final = 2 * 1024 * 1024
"""Bytes of the pool's first part."""

MOST_OF_PEAK: Final = 4
"""How many times the peak the pool may have: it doubles its parts until one is large enough (``BFCAllocator::Extend``).

Seen were 1.3 to 2.6 times, for tensors from 1 to 380 MiB (TensorFlow 2.21, 2026-11-26).
"""


class CpuPool:
    """Follows the peak of the pool in this process, which tells how much of the heap it may have taken.

    With oneDNN, large tensors on the CPU come from a pool (``MklCPUAllocator``, a ``BFCAllocator``) that keeps what it has
    taken from ``malloc`` for the next operation: 256 MiB where a first test needs 100 MiB for a moment. Its size is not
    told, but its peak is, by which it has grown.
    """

    def __init__(self) -> None:
        self._peak = 0
        self._taken = 0

    def growth(self, grown: int, context: Any) -> int:
        """Return how many of `grown` bytes, by which the heap has just grown, a context's pool may have taken."""
        peak = _read_peak(context)
        if peak <= self._peak:
            return 0
        self._peak = peak
        taken = max(0, min(grown, MOST_OF_PEAK * peak + LEAST - self._taken))
        self._taken += taken
        return taken


def _read_peak(context: Any) -> int:
    """Return the most bytes that tensors on the CPU have had; 0 where it is not told."""
    try:
        peak = memory_info(context, "CPU:0").get("peak")
    except Exception:  # noqa: BLE001 - another allocator has no statistics
        return 0
    return peak if type(peak) is int and peak > 0 else 0
