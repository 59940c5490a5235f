"""What torch has for devices of other kinds than CUDA's."""

from __future__ import annotations

from typing import Any

MODULES = ("xpu", "mtia", "hpu")
"""Devices with a module of their own in or beside torch, apart from CUDA, MPS and PrivateUse1."""


def accelerator_names(torch: Any) -> list[str]:
    """The types of devices that have a module `torch.<type>` with functions like those of `torch.cuda`."""
    names = [name for name in MODULES if name in vars(torch)]
    private = getattr(torch._C, "_get_privateuse1_backend_name", None)
    if private is not None and private() in vars(torch) and private() not in names:
        names.append(private())
    return names
