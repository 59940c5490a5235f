"""Tell how much of the heap TensorFlow's pool for tensors on the CPU may have taken.

With oneDNN, large tensors on the CPU come from a pool (``MklCPUAllocator``, a ``BFCAllocator``) that keeps what it has
taken from ``malloc`` for the next operation: 256 MiB where a first test needs 100 MiB for a moment. Its size is not
told, but its peak is, by which it has grown.
"""

from __future__ import annotations

from typing import Any, Final

from pytest_gpuleak.adapters.tensorflow.lookup import memory_info

LEAST: Final = 2 * 1024 * 1024
"""Bytes of the pool's first part."""

MOST_OF_PEAK: Final = 4
"""How many times the peak the pool may have: it doubles its parts until one is large enough (``BFCAllocator::Extend``).

Seen were 1.3 to 2.6 times, for tensors from 1 to 380 MiB (TensorFlow 2.21, 2026-11-26).
"""


class CpuPool:
    """Follows the peak of the pool in this process."""

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
