"""Devices of numbers alone, which count as a caching allocator does, and a conftest.py that has them watched."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.probe_protocol import DeviceProbe, DeviceReading

if TYPE_CHECKING:
    from collections.abc import Iterator


MIB = 1 << 20

CONFTEST = """
    import pytest
    from pytest_gpuleak.session.peak_hooks import DEVICE_PROBES
    from tests.support.fake_devices import PROBE

    def pytest_configure(config):
        PROBE.reset()
        config.stash[DEVICE_PROBES] = [PROBE]
"""


@dataclasses.dataclass
class Memory:
    """One device's counters."""

    allocated: int = 0
    reserved: int = 0
    peak: int = 0
    reserved_peak: int = 0


class FakeDevices(DeviceProbe):
    """A probe of devices that tests allocate on by calling `take` and `give`, in MiB."""

    idle = False
    name = "fake"

    def __init__(self) -> None:
        self.absent: dict[str, str] = {}
        self.reset()

    def used(self, device: str) -> int | None:
        """No driver can be asked."""
        del device
        return None

    def reset(self) -> None:
        """No device has been used."""
        self.memory: dict[str, Memory] = {}
        self.broken = ""
        self.counts_peaks = True
        self.counts_reserved = True
        self.begun = 0

    def take(self, size: float, device: str = "fake:0", *, reserve: float = 0) -> None:
        """Allocate."""
        memory = self.memory.setdefault(device, Memory())
        memory.allocated += int(size * MIB)
        memory.reserved = max(memory.reserved, memory.allocated, int(reserve * MIB))
        memory.peak = max(memory.peak, memory.allocated)
        memory.reserved_peak = max(memory.reserved_peak, memory.reserved)

    def give(self, size: float, device: str = "fake:0") -> None:
        """Free, and keep it reserved."""
        self.memory[device].allocated -= int(size * MIB)

    def empty_cache(self, device: str = "fake:0") -> None:
        """Let go of what is reserved and not allocated."""
        self.memory[device].reserved = self.memory[device].allocated

    @contextlib.contextmanager
    def taken(self, size: float, device: str = "fake:0") -> Iterator[None]:
        """Allocate within a block."""
        self.take(size, device)
        try:
            yield
        finally:
            self.give(size, device)

    def read(self) -> dict[str, DeviceReading]:
        """The counters of the devices that have been used."""
        if self.broken:
            raise RuntimeError(self.broken)
        return {
            device: DeviceReading(
                memory.allocated,
                reserved=memory.reserved if self.counts_reserved else None,
                peak=memory.peak if self.counts_peaks else None,
                reserved_peak=memory.reserved_peak if self.counts_peaks and self.counts_reserved else None,
            )
            for device, memory in self.memory.items()
        }

    def begin_peaks(self) -> None:
        """Peaks are of what follows."""
        self.begun += 1
        for memory in self.memory.values():
            memory.peak, memory.reserved_peak = memory.allocated, memory.reserved

    def stop(self) -> None:
        """Nothing was changed."""


PROBE = FakeDevices()
"""The devices of the run under test, in this process."""
