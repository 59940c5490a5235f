"""Measure a process's memory on a device outside torch: raw ``cudaMalloc``, NCCL, other frameworks, contexts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.model.readings import OUTSIDE_FLOOR

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuleak.adapters.nvml.readings import NvmlReading

KINDS = ("cuda",)
"""Types of devices that the driver can be asked about."""


class OutsideTorch:
    """Tell whose memory outside torch grows on a device: free memory tells all processes', so the driver is asked."""

    def __init__(self, processes: Callable[[], Mapping[str, NvmlReading]]) -> None:
        self._processes = processes
        self._known: dict[str, int] = {}
        self._before: dict[str, int] = {}

    def begin(self) -> None:
        """Begin a run: memory that the process is known to hold outside torch was there before."""
        if self._known:
            self._before = dict(self._known)

    def growth(
        self, in_use: Mapping[str, int], reserved: Mapping[str, int], first_used: frozenset[str]
    ) -> dict[str, int]:
        """Return by device the bytes that the process itself has added since `begin`.

        `in_use` is the growth of use beyond torch's own in any process, `reserved` what torch has reserved now; the
        context of `first_used` devices came with the run, so they are skipped.
        """
        asked = {device: size for device, size in in_use.items() if device.partition(":")[0] in KINDS}
        new = [device for device in asked if device not in self._known]
        if not new and not any(size >= OUTSIDE_FLOOR for size in asked.values()):
            return {}
        self._ask(reserved)
        return {
            device: self._known[device] - self._before[device]
            for device, size in asked.items()
            if size >= OUTSIDE_FLOOR and device in self._before and device in self._known and device not in first_used
        }

    def _ask(self, reserved: Mapping[str, int]) -> None:
        from pytest_gpuleak.adapters.nvml.readings import outside

        for device, reading in self._processes().items():
            size = outside(reading, reserved.get(device, 0))
            if size is not None:
                self._known[device] = size
