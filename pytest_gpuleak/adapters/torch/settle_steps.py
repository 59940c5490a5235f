"""Free device memory that is held but not leaked. No step initialises a device or empties the allocator's cache."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.protocol import DeviceStep
from pytest_gpuleak.adapters.torch.allocator_history import WORKSPACES, marked
from pytest_gpuleak.adapters.torch.lookup import accelerator_names, loaded_torch
from pytest_gpuleak.adapters.torch.states import torch_in_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.adapters.protocol import SettleStep


def device_steps() -> list[SettleStep]:
    """Return the steps for the devices that the process has initialised, cheapest first; none without torch."""
    torch = loaded_torch()
    if torch is None or not (_cuda_initialised(torch) or _initialised_modules(torch) or has_mps(torch)):
        return []
    acts = [synchronize, clear_workspaces]
    if _cuda_initialised(torch):
        acts += [clear_plans, _empty_host_cache]
    return [DeviceStep(partial(_outside_captures, act)) for act in acts]


def free_workspaces_now() -> None:
    """Free the workspaces of the devices in use, waiting only where their end takes effect by it. Never raises."""
    with suppress(Exception):
        _outside_captures(_free_now)


def _outside_captures(act: Callable[[Any], None]) -> None:
    """Act on torch. Raises torch's errors, and RuntimeError during the capture of a CUDA graph, which would end."""
    torch = loaded_torch()
    if torch is None or (_cuda_initialised(torch) and torch.cuda.is_current_stream_capturing()):
        raise RuntimeError("a CUDA graph is captured")
    with torch_in_place():
        act(torch)


def _free_now(torch: Any) -> None:
    free_workspaces(torch)
    backend = getattr(torch._C, "_cuda_getAllocatorBackend", None)
    if _cuda_initialised(torch) and backend is not None and backend() == "cudaMallocAsync":
        synchronize(torch)  # frees in a stream's order: a budget would count them by how far the device has come


def synchronize(torch: Any) -> None:
    """Wait for the devices: blocks in use on another stream are freed only then."""
    if _cuda_initialised(torch):
        for index in _used_cuda_devices(torch):
            torch.cuda.synchronize(index)
    for module in _initialised_modules(torch):
        wait = getattr(module, "synchronize", None)
        if wait is not None:
            for index in range(module.device_count()):
                wait(index)
    if has_mps(torch):
        torch.mps.synchronize()


def clear_workspaces(torch: Any) -> None:
    """Clear the workspaces, and wait: stream-ordered frees (cudaMallocAsync) take effect when the stream has finished."""
    free_workspaces(torch)
    synchronize(torch)


def free_workspaces(torch: Any) -> None:
    """Free cuBLAS's (pytorch issue 95668; thread-local since pull 180283) and other backends' workspaces."""
    if _cuda_initialised(torch):
        clear = getattr(torch.cuda, "clear_cublas_workspaces", None)
        if clear is None:
            clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            with marked(torch, WORKSPACES):
                clear()
    for module in _initialised_modules(torch):
        clear = getattr(module, "clear_workspaces", None)
        if clear is not None:
            clear()


def clear_plans(torch: Any) -> None:
    """Clear cuFFT's cached plans, with their tables, on devices that have any."""
    size = getattr(torch, "_cufft_get_plan_cache_size", None)
    if size is None:
        return
    for index in _used_cuda_devices(torch):
        if size(index):
            torch._cufft_clear_plan_cache(index)


def _empty_host_cache(torch: Any) -> None:
    for name in ("_host_emptyCache", "_accelerator_emptyHostCache"):
        empty = getattr(torch._C, name, None)
        if empty is not None:
            empty()
            return


def _cuda_initialised(torch: Any) -> bool:
    """Return whether this process has initialised CUDA, by torch's Python side, which initialises nothing."""
    cuda = getattr(torch, "cuda", None)
    return cuda is not None and hasattr(torch._C, "_cuda_memoryStats") and bool(cuda.is_initialized())


def _used_cuda_devices(torch: Any) -> list[int]:
    """Return the devices that have a context; if unknown, the current device."""
    context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    if context is None:
        return [torch.cuda.current_device()]
    return [index for index in range(torch._C._cuda_getDeviceCount()) if context(index)]


def _initialised_modules(torch: Any) -> list[Any]:
    modules = [vars(torch)[name] for name in accelerator_names(torch)]
    return [module for module in modules if getattr(module, "is_initialized", bool)()]


def has_mps(torch: Any) -> bool:
    """Return whether torch has a Metal device here."""
    return bool(getattr(torch._C, "_has_mps", False)) and bool(torch._C._mps_is_available())
