"""Read the memory of the devices from CuPy's memory pools, without a call to CUDA.

Not counted is memory that no pool of CuPy's has: allocators of the user's own, ``MemoryAsyncPool`` (its figures take
calls to CUDA), libraries' own allocations (cuFFT, cuBLAS, random generators).
"""

from __future__ import annotations

from pytest_gpuleak.adapters.cupy.pools import Pools
from pytest_gpuleak.adapters.probe_protocol import DeviceReading, total_of


class CupyDevices:
    """The counters of CuPy's memory pools."""

    name = "cupy"

    def __init__(self) -> None:
        self.idle = True
        self.absent: dict[str, str] = {}
        self._seen: set[int] = set()
        self._pools = Pools()

    def read(self) -> dict[str, DeviceReading]:
        """Return the readings of the devices whose pools have taken memory.

        What is handed out is the total less the free blocks: ``used_bytes()`` would walk over each block in use.
        """
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

    def used(self, device: str) -> int | None:
        """Return None: asking the driver would make a device current."""
        del device
        return None

    def begin_peaks(self) -> None:
        """Do nothing: CuPy counts no peaks."""

    def stop(self) -> None:
        """Do nothing: nothing was changed."""
