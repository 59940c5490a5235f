"""What the plugin knows by itself: the frameworks, and finders of references that walk over the heap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.frameworks import Frameworks
from pytest_gpuleak.adapters.torch.framework import TorchFramework

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.adapters.protocol import Framework, PartsLayout, ReferenceFinder
    from pytest_gpuleak.heap.hidden_references import NativeEdgeFinder

FRAMEWORKS: Final[tuple[Callable[[], Framework], ...]] = (TorchFramework,)
"""A row a framework: the class that its folder offers. None of them imports its framework."""


def own_frameworks() -> Frameworks:
    """Make the frameworks that the plugin knows by itself; more come from the `pytest_gpuleak_arrays` hook."""
    return Frameworks([make() for make in FRAMEWORKS])


def own_reference_finders() -> list[ReferenceFinder]:
    """Make the finders of the plugin's own frameworks."""
    return own_frameworks().reference_finders()


def own_layouts() -> list[PartsLayout]:
    """Return how objects of the plugin's own frameworks keep what they are made of."""
    return [layout for framework in own_frameworks().members if (layout := framework.parts_layout()) is not None]


def own_packages() -> tuple[str, ...]:
    """Return how the names of types begin that are the frameworks' own (``torch.``)."""
    return tuple(f"{framework.package}." for framework in own_frameworks().members)


def finders() -> list[NativeEdgeFinder]:
    """The finders whose libraries are imported."""
    from pytest_gpuleak.adapters.numpy import ArrayBases
    from pytest_gpuleak.heap.untracked_containers import UntrackedContainers

    return [ArrayBases(), UntrackedContainers()]
