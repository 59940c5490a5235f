"""Load the probe of a framework's devices once the tests have imported the framework: most suites have one framework."""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.arrays import ALWAYS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuleak.adapters.probe_protocol import DeviceProbe, DeviceReading


class Counters:
    """A `DeviceProbe` without peaks that asks no driver and changes nothing: `read` is all that a framework adds."""

    idle = True
    absent: Mapping[str, str] = MappingProxyType({})

    def used(self, device: str) -> int | None:
        """Return None: no framework with such a probe asks the driver."""
        del device
        return None

    def begin_peaks(self) -> None:
        """Do nothing: no peak is counted."""

    def stop(self) -> None:
        """Do nothing: nothing was changed."""


class LateDevices(Counters):
    """A device probe that `make` creates with the first reading after `module` is in `sys.modules`."""

    own_allocator = True
    tells_use = False

    def __init__(self, name: str, module: str, make: Callable[[], DeviceProbe]) -> None:
        self.name = name
        self.needs = module
        self._make = make
        self._probe: DeviceProbe | None = None
        self._met = False
        self.in_heap = False
        """Whether the C heap holds the memory that is counted (`DeviceProbe`): known from the first reading on."""

    def read(self) -> dict[str, DeviceReading]:
        """Return the readings of the devices in use; none before the framework is imported."""
        if self._probe is None:
            if self.needs not in sys.modules:
                return {}
            self._probe = self._make()
            self.needs = ALWAYS
        readings = self._probe.read()
        if readings and not self._met:
            self._met, self.in_heap = True, bool(getattr(self._probe, "in_heap", False))
        self.idle, self.absent = self._probe.idle, self._probe.absent
        return readings

    def begin_peaks(self) -> None:
        """Restart the peaks."""
        if self._probe is not None:
            self._probe.begin_peaks()

    def stop(self) -> None:
        """Stop the probe."""
        if self._probe is not None:
            self._probe.stop()
