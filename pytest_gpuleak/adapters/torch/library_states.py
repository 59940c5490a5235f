"""Know the states that libraries below torch keep on a device for the whole process, and that no tensor in Python has."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from pytest_gpuleak.adapters.torch.allocator_history import blocks_in_use, requested_bytes
from pytest_gpuleak.adapters.torch.lookup import torch_module

DROPOUT_BYTES: Final = 48 << 10
"""Bytes of cuDNN's dropout state for each multiprocessor: it took 6,488,064 on an H100 with 132 of them (cuDNN 9.19)."""


def library_states(device: str) -> list[int]:
    """Return the bytes of each such state that is allocated on a device in use; none where torch cannot tell.

    The first recurrent layer with dropout makes cuDNN's, which torch keeps in a static variable
    (`get_dropout_state`, ATen/native/cudnn/RNN.cpp).
    """
    kind, _, number = device.partition(":")
    cuda: Any = torch_module("torch.cuda")
    if kind != "cuda" or cuda is None:
        return []
    with contextlib.suppress(Exception):  # cudaMallocAsync tells no blocks, and a device may be lost during a run
        size = DROPOUT_BYTES * int(cuda.get_device_properties(device).multi_processor_count)
        in_use = blocks_in_use(cuda.memory_snapshot(), int(number or 0))
        if any(requested_bytes(block) == size for _, block in in_use):
            return [size]
    return []
