"""Array frameworks: what each calls an array, and how to read one without side effects."""

from __future__ import annotations

from pytest_gpuleak.arrays.protocol import ArrayFramework
from pytest_gpuleak.arrays.torch import TorchArrays


def builtin_frameworks() -> list[ArrayFramework]:
    """The frameworks that the plugin knows by itself; more come from the `pytest_gpuleak_arrays` hook."""
    return [TorchArrays()]


__all__ = ["ArrayFramework", "TorchArrays", "builtin_frameworks"]
