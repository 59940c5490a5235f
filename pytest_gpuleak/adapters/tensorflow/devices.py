"""Read the memory of TensorFlow's GPUs from its own allocators. TensorFlow is looked up, never imported.

The figures are those of `tf.config.experimental.get_memory_info`, taken from the eager context that the tests have
initialised: the function itself would initialise one, and take the GPUs' memory with it. The CPU has no such figures.
Peaks are not read: to restart them (`reset_memory_stats`) would change what the tests read.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.tensorflow.lookup import CONTEXT, eager_context, loaded_module

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.probe_protocol import DeviceReading

_GPU = "GPU"


class TensorFlowDevices:
    """The counters of TensorFlow's GPUs.

    Attributes:
        idle: whether the last `read` found that no GPU can have been used yet.
        absent: why devices had no readings in the last `read`, by type.
    """

    name = "tensorflow"

    def __init__(self) -> None:
        self.idle = True
        self.absent: dict[str, str] = {}

    def read(self) -> dict[str, DeviceReading]:
        """Return the readings of the GPUs of the context that the tests have initialised."""
        readings: dict[str, DeviceReading] = {}
        if CONTEXT not in sys.modules:
            return readings
        if self.absent:
            self.absent = {}
        devices = _gpus()
        self.idle = not devices
        if devices:
            from pytest_gpuleak.adapters.probe_protocol import DeviceReading  # most runs use no device

            handle = vars(eager_context())["_context_handle"]
            ask = (loaded_module("tensorflow.python.pywrap_tfe") or {})["TFE_GetMemoryInfo"]
            for index in devices:
                current = ask(handle, f"{_GPU}:{index}").get("current")
                if type(current) is int and current >= 0:
                    readings[f"gpu:{index}"] = DeviceReading(allocated=current)
                else:
                    self.absent[f"gpu:{index}"] = "its counters are out of range"
        return readings

    def used(self, device: str) -> int | None:
        """Return None: TensorFlow takes a device's memory in advance, so the driver's figure says nothing."""
        del device
        return None

    def begin_peaks(self) -> None:
        """Do nothing: peaks are not read."""

    def stop(self) -> None:
        """Do nothing: nothing was changed."""


def has_gpus() -> bool:
    """Return whether the context that the tests have initialised has GPUs."""
    return bool(_gpus())


def _gpus() -> list[int]:
    """Return the indices of the context's GPUs."""
    context: Any = eager_context()
    found: Any = () if context is None else vars(context).get("_logical_devices") or ()
    return [int(one.name.rpartition(":")[2]) for one in found if one.device_type == _GPU]
