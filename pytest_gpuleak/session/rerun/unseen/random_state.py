"""Restore random generators after a re-run: the next test must draw the same numbers as without it."""

from __future__ import annotations

import sys
import types
import weakref
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.arrays import outlive_tests
from pytest_gpuleak.heap.collector import current_view, get_objects, instances_of, whole_heap
from pytest_gpuleak.heap.last_types import FEW, LastTypes
from pytest_gpuleak.heap.library_types import extension_class
from pytest_gpuleak.heap.weak_references import has_weak_references
from pytest_gpuleak.session.rerun.unseen.hidden_generators import HiddenGenerators
from pytest_gpuleak.session.rerun.unseen.restoring import Restore, keep_each, nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pytest_gpuleak.heap.collector import GcView

_NUMPY_LEGACY = "numpy.random.mtrand"


def keep_random_states() -> Restore:
    """Note the states of Python's and NumPy's generators on the heap. Frameworks keep their own."""
    kinds = _kinds()
    found = _FOLLOWED.alive(kinds)
    if found is None:
        found = _FOLLOWED.begin(kinds)
    return keep_each(partial(kinds[id(type(one))], one) for one in found)  # SystemRandom has no state


def _kinds() -> dict[int, Callable[[Any], Restore]]:
    """Return by the ids of the loaded classes of generators how a generator's state is kept."""
    # A test may reload the module, which creates a new class and generator.
    loaded = sys.modules.get("random")
    reloaded = vars(loaded).get("Random") if type(loaded) is types.ModuleType else None
    kinds: dict[int, Callable[[Any], Restore]] = {id(kind): _keep_python for kind in (Random, reloaded) if kind}
    numpy = (
        ("numpy.random._generator", "Generator", _keep_numpy_generator),
        (_NUMPY_LEGACY, "RandomState", _keep_numpy_legacy),
    )
    for module, name, keep in numpy:
        kind = extension_class(module, name)
        if kind is not None:
            kinds[id(kind)] = keep
    return kinds


class _Followed:
    """The generators alive, by weak references, so that the heap is walked once and not for each re-run.

    Then young objects are looked at before they become old. NumPy's have no weak references: see `HiddenGenerators`.
    """

    def __init__(self) -> None:
        self._view: weakref.ref[GcView] | None = None
        self._kinds: frozenset[int] = frozenset()
        self._known: dict[int, weakref.ref[Any]] = {}
        self._hidden = HiddenGenerators()
        self._without_any = LastTypes()

    def begin(self, kinds: Collection[int]) -> list[Any]:
        """Return the generators alive, found by a walk over the heap, and follow them from now on."""
        self.end()
        with whole_heap():
            found = instances_of(kinds)
            all_known = self._hidden.note_walk(_hidden_among(found), (id(found),))
        view = current_view()
        if all_known and view is not None and view.sees_only_young:
            self._view = weakref.ref(view)
            self._kinds, self._without_any = frozenset(kinds), LastTypes()
            view.before_aging = self._note_young
            self._note(found)
        return found

    def end(self) -> None:
        view = None if self._view is None else self._view()
        if view is not None:
            view.before_aging = nothing
        self._view = None
        self._known.clear()

    def alive(self, kinds: Collection[int]) -> list[Any] | None:
        """Return the generators alive; None where only a walk over the heap can tell."""
        view = None if self._view is None else self._view()
        if view is None or view is not current_view() or not view.sees_only_young or self._kinds != frozenset(kinds):
            return None
        young = instances_of(self._kinds)
        self._note(young)
        hidden = None if self._view is None else self._hidden.alive(_hidden_among(young))
        if hidden is None:
            return None
        found = [one for reference in self._known.values() if (one := reference()) is not None]
        self._known = {id(one): self._known[id(one)] for one in found}
        named = _numpy_singleton()
        return [*found, *hidden, *([] if named is None else [named])]

    def _note_young(self) -> None:
        try:
            # Before each test from the first re-run on, and hardly any makes a generator that outlives it.
            young = get_objects()
            if self._without_any.match(young):
                return
            kinds = list(map(type, young))
            if not self._kinds.isdisjoint(map(id, kinds)):
                self._note(instances_of(self._kinds))
            elif len(kinds) < FEW and outlive_tests(kinds):
                self._without_any.remember(kinds)
        except Exception:  # noqa: BLE001 - a callback of the collector: the next re-run walks the heap
            self.end()

    def _note(self, found: Sequence[Any]) -> None:
        for one in found:
            if has_weak_references(one) and (id(one) not in self._known or self._known[id(one)]() is not one):
                self._known[id(one)] = weakref.ref(one)
        if not self._hidden.note(_hidden_among(found)):
            self.end()


def _hidden_among(found: Sequence[Any]) -> list[Any]:
    """Return those without weak references, of which NumPy's own is known by name."""
    return [one for one in found if not has_weak_references(one) and one is not _numpy_singleton()]


_FOLLOWED = _Followed()


def _numpy_singleton() -> Any:
    """Return the generator behind `numpy.random.rand` and the like; None where it is not loaded."""
    module = sys.modules.get(_NUMPY_LEGACY)
    return vars(module).get("_rand") if type(module) is types.ModuleType else None


def _keep_python(generator: Random) -> Restore:
    return partial(generator.setstate, generator.getstate())


def _keep_numpy_generator(generator: Any) -> Restore:
    return partial(setattr, generator.bit_generator, "state", generator.bit_generator.state)


def _keep_numpy_legacy(generator: Any) -> Restore:
    return partial(generator.set_state, generator.get_state(legacy=False))
