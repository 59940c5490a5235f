"""Ask NVIDIA's driver: about devices only on demand, since NVML takes up to milliseconds a call, and whether there is a context."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.registry import own_frameworks
from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.readings import ProbeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.adapters.nvml.readings import Nvml, NvmlReading


def _uses_devices() -> bool:
    """Return whether this process uses a device, failed devices included. Otherwise a missing driver is no fault."""
    return any(isolated(framework.device_names, lambda why: [why]) for framework in own_frameworks().members)


def _call(function: Callable[[], Any]) -> Any:
    return function()


class LazyNvml:
    """NVML, started by the first reading. Why it cannot be read is appended to `faults`."""

    def __init__(self, faults: list[str]) -> None:
        self._faults = faults
        self._nvml: Nvml | None = None
        self._asked = False
        self.why_absent = ""
        """Why NVML could not be started; empty where it was, or was not asked."""
        self.bound: Callable[[Callable[[], Any]], Any] = _call
        """Calls a function for a limited time. Raises TimeoutError when the time is over."""

    def read(self, *, bounded: bool = True) -> dict[str, NvmlReading]:
        """Return the reading of each device by name; empty if NVML cannot be read. Never raises.

        With `bounded` off it may take as long as the driver does, as the counters' own calls after each test: the watchdog
        takes longer than a reading.
        """
        try:
            nvml = self._start()
            if nvml is None:
                return {}
            readings: dict[str, NvmlReading] = self.bound(nvml.read) if bounded else nvml.read()
        except TimeoutError:
            self._faults.append("nvml: a call took too long, and it is no longer asked")
            self._nvml = None
            return {}
        if nvml.fault:
            self._faults.append(f"nvml: {nvml.fault}")
            self._nvml = None
        return readings

    def stop(self) -> None:
        """Close the library. Safe to call twice."""
        if self._nvml is not None:
            self._nvml.stop()
            self._nvml = None

    def _start(self) -> Nvml | None:
        if not self._asked:
            self._asked = True
            from pytest_gpuleak.adapters.nvml.readings import Nvml

            nvml = Nvml()
            try:
                self.bound(nvml.start)
            except ProbeUnavailable as why:
                self.why_absent = str(why)
                if _uses_devices():
                    self._faults.append(f"nvml not read: {why}")
            else:
                self._nvml = nvml
        return self._nvml


_DRIVER = "libcuda.so.1"


def has_context() -> bool:
    """Return whether a context is there: a device's primary one, or another that is current in this thread.

    False where the driver's library is not loaded, or before `cuInit`: the functions then say that nothing is
    initialised. None of them creates a context (CUDA Driver API, "Primary Context Management"). NVML would tell memory,
    not contexts, and knows no process of a container. Only Linux can say what is loaded without loading it.
    """
    only_if_loaded = getattr(os, "RTLD_NOLOAD", None)
    if only_if_loaded is None:
        return False
    import ctypes

    try:
        driver = ctypes.CDLL(_DRIVER, mode=only_if_loaded)
        current, count = ctypes.c_void_p(), ctypes.c_int()
        if driver.cuCtxGetCurrent(ctypes.byref(current)) == 0 and current.value:
            return True
        if driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return False
        return any(_is_active(driver, index) for index in range(count.value))
    except (OSError, AttributeError):  # not loaded, or another library of that name
        return False


def _is_active(driver: Any, index: int) -> bool:
    import ctypes

    device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(device), index) != 0:
        return False
    state = driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
    return state == 0 and active.value != 0
