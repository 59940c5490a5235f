"""Ask NVIDIA's driver whether this process has a context, whichever library made it. Nothing is loaded or initialised."""

from __future__ import annotations

import os
from typing import Any

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
