"""List torch's device modules other than CUDA's."""

from __future__ import annotations

from typing import Any

MODULES = ("xpu", "mtia", "hpu")
"""Devices with their own module in or beside torch, apart from CUDA, MPS and PrivateUse1."""


def accelerator_names(torch: Any) -> list[str]:
    """Return the device types with a module `torch.<type>` whose functions resemble those in `torch.cuda`."""
    names = [name for name in MODULES if name in vars(torch)]
    private = getattr(torch._C, "_get_privateuse1_backend_name", None)
    if private is not None and private() in vars(torch) and private() not in names:
        names.append(private())
    return names
