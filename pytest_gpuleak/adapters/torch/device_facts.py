"""Read facts on the devices in use beyond their counters, for a report or when memory has run out."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.torch.lookup import loaded_torch, torch_module
from pytest_gpuleak.model.readings import DeviceSpace

if TYPE_CHECKING:
    from collections.abc import Collection

DROPOUT_BYTES: Final = 48 << 10
"""Bytes of cuDNN's dropout state for each multiprocessor: it took 6,488,064 on an H100 with 132 of them (cuDNN 9.19)."""


def device_names() -> list[str]:
    """Return the CUDA devices with their models, if this process has initialised CUDA.

    `is_available()` would initialise the driver, and no process that a test forks could use CUDA from then on.
    """
    cuda = getattr(loaded_torch(), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return []
    return [f"cuda:{index} {cuda.get_device_name(index)}" for index in range(cuda.device_count())]


def nvidia_uuids() -> list[str] | None:
    """Return the devices' UUIDs without prefix; none for ROCm's; None if torch has not started CUDA or cannot tell."""
    torch = loaded_torch()
    cuda: Any = getattr(torch, "cuda", None)
    try:
        if getattr(getattr(torch, "version", None), "hip", None):
            return []
        if cuda is None or not cuda.is_initialized():
            return None
        return [str(cuda.get_device_properties(index).uuid) for index in range(cuda.device_count())]
    except (AttributeError, RuntimeError, AssertionError):
        return None  # torch before 2.4 shows no UUID; without a device it raises


def release_cache(kinds: Collection[str]) -> list[str]:
    """Empty the caching allocators of these kinds of devices; return the kinds that have one."""
    released = []
    for kind in sorted(kinds):
        empty_cache = getattr(torch_module(f"torch.{kind}"), "empty_cache", None)
        if empty_cache is not None:
            empty_cache()
            released.append(kind)
    return released


def device_space(device: str) -> DeviceSpace | None:
    """Return the free memory of a device in use: for another device, asking would create a context."""
    kind, _, number = device.partition(":")
    module, index = torch_module(f"torch.{kind}"), int(number or 0)
    if module is None:
        return None
    free = total = largest = None
    with suppress(Exception):  # not every device can tell
        free, total = map(int, module.mem_get_info(index))
    with suppress(Exception):  # an allocator without such a list
        largest = _largest_free(module, index)
    return DeviceSpace(total, free, largest)


def library_states(device: str) -> list[int]:
    """Return the bytes of each state that libraries below torch keep on a device, and that no tensor in Python has.

    None where torch cannot tell. The first recurrent layer with dropout makes cuDNN's, which torch keeps in a static variable
    (`get_dropout_state`, ATen/native/cudnn/RNN.cpp).
    """
    from pytest_gpuleak.adapters.torch.allocator_history import blocks_in_use, requested_bytes  # of few tests

    kind, _, number = device.partition(":")
    cuda: Any = torch_module("torch.cuda")
    if kind != "cuda" or cuda is None:
        return []
    with suppress(Exception):  # cudaMallocAsync tells no blocks, and a device may be lost during a run
        size = DROPOUT_BYTES * int(cuda.get_device_properties(device).multi_processor_count)
        in_use = blocks_in_use(cuda.memory_snapshot(), int(number or 0))
        if any(requested_bytes(block) == size for _, block in in_use):
            return [size]
    return []


def _largest_free(module: Any, index: int) -> int:
    segments = [segment for segment in module.memory_snapshot() if segment["device"] == index]
    inactive = (int(block["size"]) for one in segments for block in one["blocks"] if block["state"] == "inactive")
    return max(inactive, default=0)
