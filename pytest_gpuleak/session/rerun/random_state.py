"""Restore random generators after a re-run, since the next test must draw the same numbers as without it."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable
from itertools import compress
from random import Random
from typing import Any

from pytest_gpuleak.heap.collector import get_objects, whole_heap
from pytest_gpuleak.heap.library_types import extension_class

Restore = Callable[[], None]


def keep_random_states() -> Restore:
    """Note the states of all generators; the returned function restores them.

    Python's and NumPy's are found on the heap, including private generators of test modules. Frameworks keep their own
    (`Framework.keep_states`).
    """
    restores: list[Restore] = []
    for generator, keep in _generators():
        with contextlib.suppress(Exception):  # no state (SystemRandom), or a replaced module
            restores.append(keep(generator))

    def restore() -> None:
        for put_back in restores:
            with contextlib.suppress(Exception):
                put_back()

    return restore


def _generators() -> list[tuple[Any, Callable[[Any], Restore]]]:
    # A test may reload the module, which creates a new class and generator.
    loaded = sys.modules.get("random")
    reloaded = vars(loaded).get("Random") if type(loaded) is types.ModuleType else None
    kinds: dict[int, Callable[[Any], Restore]] = {id(kind): _keep_python for kind in (Random, reloaded) if kind}
    numpy = (
        ("numpy.random._generator", "Generator", _keep_numpy_generator),
        ("numpy.random.mtrand", "RandomState", _keep_numpy_legacy),
    )
    for module, name, keep in numpy:
        kind = extension_class(module, name)
        if kind is not None:
            kinds[id(kind)] = keep
    with whole_heap():
        objects = get_objects()
        # Faster than a comprehension (docs/developing/performance.md).
        matches = compress(objects, map(kinds.__contains__, map(id, map(type, objects))))
        found = [(one, kinds[id(type(one))]) for one in matches]
        del objects
    return found


def _keep_python(generator: Random) -> Restore:
    state = generator.getstate()
    return lambda: generator.setstate(state)


def _keep_numpy_generator(generator: Any) -> Restore:
    state = generator.bit_generator.state

    def put_back() -> None:
        generator.bit_generator.state = state

    return put_back


def _keep_numpy_legacy(generator: Any) -> Restore:
    state = generator.get_state(legacy=False)
    return lambda: generator.set_state(state)
