"""What the plugin knows by itself: array frameworks, and finders of references that the collector does not see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.torch.arrays import TorchArrays, TorchStorages

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.protocol import ArrayFramework
    from pytest_gpuleak.heap.hidden_references import NativeEdgeFinder


def builtin_frameworks() -> list[ArrayFramework]:
    """The frameworks that the plugin knows by itself; more come from the `pytest_gpuleak_arrays` hook."""
    return [TorchArrays(), TorchStorages()]


def finders() -> list[NativeEdgeFinder]:
    """The finders whose libraries are imported."""
    from pytest_gpuleak.adapters.numpy import ArrayBases
    from pytest_gpuleak.heap.untracked_containers import UntrackedContainers

    return [ArrayBases(), UntrackedContainers()]
