"""Lets `torch.cuda` of torch's CPU build initialise: what it asks of C is replaced by nothing, its Python is real."""

from __future__ import annotations

from typing import Any


def install() -> None:
    """Import torch, and have `torch.cuda._lazy_init` succeed from now on. No device is there to be used."""
    import torch

    core: Any = torch._C
    cuda: Any = torch.cuda
    core._cuda_getDeviceCount = lambda: 0
    core._cuda_init = lambda: None
    core._cuda_getDevice = lambda: 0
    cuda._cudart = object()
    cuda._queued_calls[:] = [call for call in cuda._queued_calls if getattr(call[0], "__module__", "") != "torch.cuda"]
    cuda._lazy_seed_tracker.get_calls = list
