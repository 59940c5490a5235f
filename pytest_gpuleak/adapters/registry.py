"""List the frameworks and the heap-walking reference finders that the plugin provides."""

from __future__ import annotations

import sys
from functools import partial
from operator import gt
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.cupy.framework import CupyFramework
from pytest_gpuleak.adapters.frameworks import Frameworks
from pytest_gpuleak.adapters.jax.framework import JaxFramework
from pytest_gpuleak.adapters.mlx.framework import MlxFramework
from pytest_gpuleak.adapters.numpy import known_arrays
from pytest_gpuleak.adapters.numpy.framework import NumpyFramework
from pytest_gpuleak.adapters.tensorflow.framework import TensorFlowFramework
from pytest_gpuleak.adapters.torch.framework import TorchFramework
from pytest_gpuleak.heap.library_types import extension_class

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.adapters.protocol import Framework
    from pytest_gpuleak.adapters.reference_protocol import PartsLayout, ReferenceFinder
    from pytest_gpuleak.adapters.untracked import MetArrays, UntrackedArrays
    from pytest_gpuleak.heap.hidden_references import HeapFinder

FRAMEWORKS: Final[tuple[Callable[[], Framework], ...]] = (
    TorchFramework,
    NumpyFramework,
    CupyFramework,
    JaxFramework,
    MlxFramework,
    TensorFlowFramework,
)
"""The plugin's frameworks, a factory each. Creating a framework does not import the library."""

_ARRAY_REFERENCES: Final = known_arrays.ArrayReferences()


def own_frameworks() -> Frameworks:
    """Create the plugin's own frameworks; the hook `pytest_gpuleak_arrays` adds others."""
    return Frameworks([make() for make in FRAMEWORKS])


def own_reference_finders() -> list[ReferenceFinder]:
    """Create the reference finders of the plugin's own frameworks."""
    return own_frameworks().reference_finders()


def own_layouts() -> list[PartsLayout]:
    """Return how objects of the plugin's own frameworks store their parts."""
    return [layout for framework in own_frameworks().members if (layout := framework.parts_layout()) is not None]


def own_packages() -> tuple[str, ...]:
    """Return the prefixes of the frameworks' own type names (``torch.``)."""
    return tuple(
        f"{package}."
        for framework in own_frameworks().members
        for package in (framework.package, *framework.companions)
    )


def own_cache_packages() -> tuple[str, ...]:
    """Return the packages whose globals are caches of the plugin's own frameworks."""
    return tuple(package for framework in own_frameworks().members for package in framework.cache_packages)


def borrower_finder() -> HeapFinder:
    """Return the finder of those to whom arrays lent their memory, such as DLPack capsules: it walks over the heap."""
    from pytest_gpuleak.adapters.dlpack import lent_memory

    return partial(lent_memory, own_frameworks())


def finders() -> list[HeapFinder]:
    """Return the finders that walk over the heap."""
    from pytest_gpuleak.adapters.numpy.bases import array_bases
    from pytest_gpuleak.adapters.tensorflow.tapes import tape_records
    from pytest_gpuleak.heap.hidden_references import suspended_greenlets, unshown_containers, untracked_containers

    return [array_bases, tape_records, suspended_greenlets, untracked_containers, unshown_containers]


def may_have_untracked_arrays() -> bool:
    """Tell, in a fraction of a microsecond, whether a library whose arrays the collector does not track is imported."""
    return sys.modules.get("numpy") is not None


def untracked_generator_class() -> type | None:
    """Return the class of random generators that the collector does not track; None until it is imported."""
    return extension_class("torch._C", "Generator")


def opened_count() -> int:
    """Return a number that grows with each file that is opened and that the collector does not track; cheap."""
    if "safetensors" not in sys.modules:
        return 0
    from pytest_gpuleak.adapters.safetensors import opened_count as found

    return found()


def mapped_files() -> dict[int, tuple[str, int]]:
    """Return the path and the bytes of each map of such a file, by its address."""
    from pytest_gpuleak.adapters.safetensors import mapped_files as found

    return found()


def open_file_class() -> type | None:
    """Return the class of such files; None until it is imported."""
    from pytest_gpuleak.adapters.safetensors import file_class

    return file_class()


def module_arrays() -> MetArrays:
    """Return the untracked arrays that modules hold."""
    return known_arrays.module_arrays()


def untracked_array_counts() -> list[int]:
    """Return numbers of which one rises with each untracked array that is made, as a rule; empty where none is known."""
    try:
        return _ARRAY_REFERENCES.counts() if may_have_untracked_arrays() else []
    except Exception:  # noqa: BLE001 - a numpy that is half imported: growth is judged as if arrays had been added
        return []


def have_added_arrays(before: list[int], now: list[int]) -> bool | None:
    """Tell from two answers of `untracked_array_counts` whether arrays were added between them; None where unknown.

    Arrays that have gone meanwhile may hide as many new ones.
    """
    if not now or len(before) != len(now):
        return None
    return any(map(gt, now, before)) or (None if any(map(gt, before, now)) else False)


def arrays_in(objects: list[object]) -> MetArrays:
    """Return the untracked arrays in these objects."""
    return known_arrays.arrays_in(objects)


def untracked_arrays() -> UntrackedArrays:
    """Return the reader of arrays on the heap that the collector does not track."""
    from pytest_gpuleak.adapters.numpy.memory import Ndarrays

    return Ndarrays()
