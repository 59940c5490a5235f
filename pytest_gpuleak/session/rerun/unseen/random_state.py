"""Restore random generators after a re-run: the next test must draw the same numbers as without it."""

from __future__ import annotations

import sys
import types
import weakref
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.heap.collector import current_view, get_objects, instances_of, whole_heap
from pytest_gpuleak.heap.library_types import extension_class
from pytest_gpuleak.heap.safe_access import in_package, slot
from pytest_gpuleak.heap.weak_references import has_weak_references
from pytest_gpuleak.session.rerun.unseen.restoring import Restore, keep_each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuleak.heap.collector import GcView


def keep_random_states() -> Restore:
    """Note the states of Python's and NumPy's generators, wherever they are held. Frameworks keep their own."""
    kinds = _kinds()
    found = _FOLLOWED.alive(frozenset(kinds))
    return keep_each(partial(kinds[id(type(one))], one) for one in found)  # SystemRandom has no state


def find_generators() -> None:
    """Walk the heap for generators where the next re-run would have to: that would end its epoch."""
    with suppress(Exception):  # the re-run tries again
        _FOLLOWED.alive(frozenset(_kinds()))


def _kinds() -> dict[int, Callable[[Any], Restore]]:
    """Return by the ids of the loaded classes of generators how a generator's state is kept."""
    # A test may reload the module, which creates a new class and generator.
    loaded = sys.modules.get("random")
    reloaded = vars(loaded).get("Random") if type(loaded) is types.ModuleType else None
    generator = extension_class("numpy.random._generator", "Generator")
    legacy = extension_class("numpy.random.mtrand", "RandomState")
    rows = ((Random, _keep_python), (reloaded, _keep_python), (generator, _keep_numpy), (legacy, _keep_numpy_legacy))
    return {id(kind): keep for kind, keep in rows if kind is not None}


def _keep_python(generator: Random) -> Restore:
    return partial(generator.setstate, generator.getstate())


def _keep_numpy(generator: Any) -> Restore:
    return partial(setattr, generator.bit_generator, "state", generator.bit_generator.state)


def _keep_numpy_legacy(generator: Any) -> Restore:
    return partial(generator.set_state, generator.get_state(legacy=False))


class _Followed:
    """The generators alive: found by one walk over the heap, and from then on among the young before they become old.

    So a re-run looks at the young objects alone. References are weak; but NumPy's generators have no weak references.
    Those are held, a few kilobytes each without an object of the user's, until nothing else refers to them.
    """

    def __init__(self) -> None:
        self._view: weakref.ref[GcView] | None = None
        self._kinds: frozenset[int] = frozenset()
        self._known: dict[int, weakref.ref[Any]] = {}
        self._held: dict[int, Any] = {}

    def alive(self, kinds: frozenset[int]) -> list[Any]:
        """Return the generators of the classes with these ids."""
        view = current_view()
        if view is None or not view.sees_only_young:
            with whole_heap():
                return instances_of(kinds)
        self._let_go()
        followed = self._view is not None and self._view() is view and self._kinds == kinds
        if followed:
            found = instances_of(kinds)
        else:
            with whole_heap():
                found = instances_of(kinds)
            self._view, self._kinds, self._known, self._held = weakref.ref(view), kinds, {}, {}
            view.before_aging = self._note_young
        self._note(found)
        found += [one for reference in self._known.values() if (one := reference()) is not None]
        self._known = {identity: known for identity, known in self._known.items() if known() is not None}
        return list({id(one): one for one in (*found, *self._held.values())}.values())

    def _note_young(self) -> None:
        try:
            # Before each test from the first re-run on, and hardly any makes a generator that outlives it.
            if self._view is not None and not self._kinds.isdisjoint(map(id, map(type, get_objects()))):
                self._note(instances_of(self._kinds))
            self._let_go()
        except Exception:  # noqa: BLE001 - a callback of the collector: the next re-run walks the heap
            self._view = None

    def _note(self, found: Sequence[Any]) -> None:
        for one in found:
            if has_weak_references(one):
                self._known[id(one)] = weakref.ref(one)
            elif _is_numpys_own(one):
                self._held[id(one)] = one
            else:
                self._view = None  # holding it would hold the user's objects: the next re-run walks the heap

    def _let_go(self) -> None:
        alone = _reference_counts({0: object()})[0]
        counts = _reference_counts(self._held)
        self._held = {key: self._held[key] for key, count in zip(self._held, counts, strict=True) if count > alone}


def _reference_counts(held: dict[int, Any]) -> list[int]:
    return list(map(sys.getrefcount, list(held.values())))


def _is_numpys_own(generator: Any) -> bool:
    """Tell whether a generator of NumPy's draws from a source of NumPy's, which was seeded by a class of NumPy's."""
    source = slot(generator, type(generator), "_bit_generator")
    base = extension_class("numpy.random.bit_generator", "BitGenerator")
    seed = None if base is None else slot(source, base, "_seed_seq")
    return in_package(type(source), "numpy.random") and (seed is None or in_package(type(seed), "numpy.random"))


_FOLLOWED = _Followed()
