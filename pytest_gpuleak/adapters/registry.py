"""Array frameworks: what each calls an array, and how to read one without side effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.torch.arrays import TorchArrays, TorchStorages

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.protocol import ArrayFramework


def builtin_frameworks() -> list[ArrayFramework]:
    """The frameworks that the plugin knows by itself; more come from the `pytest_gpuleak_arrays` hook."""
    return [TorchArrays(), TorchStorages()]


__all__ = ["TorchArrays", "TorchStorages", "builtin_frameworks"]
