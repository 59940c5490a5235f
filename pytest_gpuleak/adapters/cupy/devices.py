"""Read CuPy's memory pools without a call to CUDA; other allocators and libraries' own are not counted."""

from __future__ import annotations

from pytest_gpuleak.adapters.cupy.pools import Pools
from pytest_gpuleak.adapters.late_devices import Counters
from pytest_gpuleak.adapters.probe_protocol import DeviceReading, total_of


class CupyDevices(Counters):
    """The counters of CuPy's memory pools."""

    name = "cupy"

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._pools = Pools()

    def read(self) -> dict[str, DeviceReading]:
        """Return the readings: ``used_bytes()`` would walk over each block, so the free blocks are subtracted."""
        readings: dict[str, DeviceReading] = {}
        for device, pool in self._pools.by_device():
            total = int(pool.total_bytes())
            if total or device in self._seen:
                self._seen.add(device)
                reading = DeviceReading(max(total - int(pool.free_bytes()), 0), reserved=total)
                name = f"cuda:{device}"
                readings[name] = total_of(readings[name], reading) if name in readings else reading
        self.idle = not readings
        if self._pools.allocates_asynchronously():
            self.absent = {"cuda": "CuPy allocates with MemoryAsyncPool, whose figures take calls to CUDA"}
        elif self.absent:
            self.absent = {}
        return readings
