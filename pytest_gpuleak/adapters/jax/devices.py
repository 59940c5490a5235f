"""Read JAX's devices by ``Device.memory_stats``; no backend is initialised. Peaks cannot be restarted."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.jax.lookup import backend_names, loaded_backends
from pytest_gpuleak.adapters.probe_protocol import DeviceProbe, DeviceReading
from pytest_gpuleak.adapters.protocol import DeviceStep

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.protocol import SettleStep
    from pytest_gpuleak.model.readings import DeviceSpace


class JaxDevices(DeviceProbe):
    """The counters of the devices of initialised backends. A CPU without counters is not `absent`."""

    name = "jax"

    def __init__(self) -> None:
        self._uncounted: list[str] = []

    def read(self) -> dict[str, DeviceReading]:
        """Return the readings of the devices that have counters. Raises JAX's error where a device fails."""
        backends = backend_names()
        if backends == self._uncounted:
            return {}
        readings: dict[str, DeviceReading] = {}
        for device in counted_devices():
            reading = _reading(device.memory_stats())
            if reading is not None:
                readings[device_name(device)] = reading
        self.idle = not readings
        self._uncounted = backends if self.idle else []
        return readings


def device_name(device: Any) -> str:
    """Return a device's name as torch and the driver count: ``cuda:0`` for XLA's first GPU in this process."""
    kind = str(device.platform)
    if kind == "gpu":
        kind = "cuda"  # ROCm's devices are named so by torch as well
    number = device.local_hardware_id
    return f"{kind}:{device.id if number is None or number < 0 or kind == 'cpu' else number}"


def counted_devices() -> list[Any]:
    """Return the devices of initialised backends apart from the CPU."""
    return [
        device
        for client in loaded_backends()
        if getattr(client, "platform", "cpu") not in ("cpu", "interpreter")
        for device in client.local_devices()
    ]


def device_steps() -> list[SettleStep]:
    """Return steps that wait for what was dispatched: memory in use by a program is freed only then."""
    waits = (getattr(device, "synchronize_all_activity", None) for device in counted_devices())
    return [DeviceStep(wait) for wait in waits if wait is not None]


def device_names() -> list[str]:
    """Return the names of the devices with their models (``cuda:0 NVIDIA H100``)."""
    with suppress(Exception):  # a plugin that does not tell
        return [f"{device_name(device)} {device.device_kind}" for device in counted_devices()]
    return []


def device_space(name: str) -> DeviceSpace | None:
    """Return the space on a device by its allocator's limit; None where it has none."""
    from pytest_gpuleak.model.readings import DeviceSpace  # asked once a device is out of memory

    with suppress(Exception):
        for device in counted_devices():
            stats = device.memory_stats() if device_name(device) == name else None
            if stats:
                total, used = _count(stats, "bytes_limit"), _count(stats, "bytes_in_use")
                free = None if total is None or used is None else max(total - used, 0)
                return DeviceSpace(total, free, _count(stats, "largest_free_block_bytes"))
    return None


def _reading(stats: object) -> DeviceReading | None:
    if type(stats) is not dict:
        return None
    allocated = _count(stats, "bytes_in_use")
    if allocated is None:
        return None
    reserved = _count(stats, "pool_bytes")
    return DeviceReading(allocated, reserved=None if reserved is None or reserved < allocated else reserved)


def _count(stats: dict[str, Any], name: str) -> int | None:
    value = stats.get(name)
    return value if type(value) is int and 0 <= value < 1 << 63 else None
