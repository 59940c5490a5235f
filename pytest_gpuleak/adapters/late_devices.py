"""Load the probe of a framework's devices once the tests have imported the framework: most suites have one framework."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.arrays import ALWAYS
from pytest_gpuleak.adapters.probe_protocol import DeviceProbe

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.adapters.probe_protocol import DeviceReading


class LateDevices(DeviceProbe):
    """A device probe that `make` creates with the first reading after `module` is in `sys.modules`."""

    own_allocator = True
    tells_use = False

    def __init__(self, name: str, module: str, make: Callable[[], DeviceProbe]) -> None:
        self.name = name
        self.needs = module
        self._make = make
        self._probe: DeviceProbe | None = None
        self._met = False

    def read(self) -> dict[str, DeviceReading]:
        """Return the readings of the devices in use; none before the framework is imported."""
        if self._probe is None:
            if self.needs not in sys.modules:
                return {}
            self._probe = self._make()
            self.needs = ALWAYS
        readings = self._probe.read()
        if readings and not self._met:
            self._met, self.in_heap = True, self._probe.in_heap
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
