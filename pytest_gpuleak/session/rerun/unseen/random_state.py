"""Restore random generators after a re-run: the next test must draw the same numbers as without it."""

from __future__ import annotations

import sys
import types
import weakref
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.registry import untracked_generator_class
from pytest_gpuleak.heap.collector import current_view, instances_of, whole_heap
from pytest_gpuleak.heap.library_types import extension_class
from pytest_gpuleak.heap.referrers import untracked_instances_of
from pytest_gpuleak.heap.safe_access import class_dict, has_weak_references, in_package, slot, subclasses
from pytest_gpuleak.session.rerun.unseen.restoring import Restore, if_loaded, keep_each, keep_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpuleak.heap.collector import GcView

    Seed = Callable[[int], object]


def keep_random_states(seed: int) -> Restore:
    """Note the states of Python's, NumPy's and torch's generators, wherever they are held, and give them a seed.

    A cache by a random key would look replaced where two runs, of this test or of another, draw the same key.
    """
    kinds = _kinds()
    found = _FOLLOWED.alive(frozenset(kinds), _untracked())
    states = (partial(_keep, kinds[id(type(one))], one, seed) for one in found)  # SystemRandom has no state
    return keep_each((_keep_functions, *states))


@if_loaded("random")
def _keep_functions(module: types.ModuleType) -> Restore:
    """Note which generator the module's functions draw from: a re-run that reloads the module gives them another."""
    return keep_names(vars(module), list(vars(module)))


def _keep(keep: Callable[[Any], tuple[Restore, Seed]], generator: Any, number: int) -> Restore:
    restore, seed = keep(generator)
    with suppress(Exception):  # the state is restored all the same
        seed(number)
    return restore


def _kinds() -> dict[int, Callable[[Any], tuple[Restore, Seed]]]:
    """Return by the ids of the loaded classes of generators how a generator's state is kept."""
    # A test may reload the module, which creates a new class and generator.
    loaded = sys.modules.get("random")
    reloaded = vars(loaded).get("Random") if type(loaded) is types.ModuleType else None
    generator = extension_class("numpy.random._generator", "Generator")
    legacy = extension_class("numpy.random.mtrand", "RandomState")
    rows = ((generator, _keep_numpy), (legacy, _keep_numpy_legacy))
    found: dict[int, Callable[[Any], tuple[Restore, Seed]]] = {
        id(kind): keep for kind, keep in rows if kind is not None
    }
    found |= dict.fromkeys(_untracked(), _keep_torchs)
    for base in (Random, reloaded):
        if base is not None:
            found |= dict.fromkeys(map(id, _python_classes(base)), partial(_keep_python, base))
    return found


def _python_classes(base: type) -> Iterator[type]:
    """Yield a class and those that derive from it, but for what keeps its state in its own way."""
    yield base
    for kind in subclasses(base):
        if not {"getstate", "setstate"}.intersection(class_dict(kind)):
            yield from _python_classes(kind)


def _untracked() -> frozenset[int]:
    """Return the ids of the loaded classes of generators that the collector does not track."""
    kind = untracked_generator_class()
    return frozenset() if kind is None else frozenset((id(kind),))


def _keep_python(base: Any, generator: Random) -> tuple[Restore, Seed]:
    return partial(base.setstate, generator, base.getstate(generator)), partial(base.seed, generator)


def _keep_torchs(generator: Any) -> tuple[Restore, Seed]:
    return partial(generator.set_state, generator.get_state()), generator.manual_seed


def _keep_numpy(generator: Any) -> tuple[Restore, Seed]:
    source = generator.bit_generator

    def seed(number: int) -> None:
        if in_package(type(source), "numpy.random"):  # a user's may take no seed
            source.state = type(source)(number).state

    return partial(setattr, source, "state", source.state), seed


def _keep_numpy_legacy(generator: Any) -> tuple[Restore, Seed]:
    return partial(generator.set_state, generator.get_state(legacy=False)), generator.seed


class _Followed:
    """The generators alive: found by one walk over the heap, and from then on among the young before they become old.

    So a re-run looks at the young objects alone. References are weak; but the generators of NumPy and torch have no weak
    references. Those are held, a few kilobytes each without an object of the user's, until nothing else refers to them.
    """

    def __init__(self) -> None:
        self._view: weakref.ref[GcView] | None = None
        self._kinds: frozenset[int] = frozenset()
        self._untracked: frozenset[int] = frozenset()
        self._known: dict[int, weakref.ref[Any]] = {}
        self._held: dict[int, Any] = {}

    def alive(self, kinds: frozenset[int], untracked: frozenset[int]) -> list[Any]:
        """Return the generators of the classes with these ids, some of which the collector does not track."""
        view = current_view()
        if view is None or not view.sees_only_young:
            with whole_heap():
                return _visible(kinds, untracked)
        self._let_go()
        followed = self._view is not None and self._view() is view and self._kinds == kinds
        if followed:
            found = _visible(kinds, untracked)
        else:
            with whole_heap():
                found = _visible(kinds, untracked)
            self._view, self._kinds, self._untracked = weakref.ref(view), kinds, untracked
            self._known, self._held = {}, {}
            view.before_aging = self._note_young
        self._note(found)
        found += [one for reference in self._known.values() if (one := reference()) is not None]
        self._known = {identity: known for identity, known in self._known.items() if known() is not None}
        return list({id(one): one for one in (*found, *self._held.values())}.values())

    def _note_young(self) -> None:
        try:
            # Before each test from the first re-run on, and hardly any makes a generator that outlives it.
            if self._view is not None:
                self._note(_visible(self._kinds, self._untracked))
            self._let_go()
        except Exception:  # noqa: BLE001 - a callback of the collector: the next re-run walks the heap
            self._view = None

    def _note(self, found: Sequence[Any]) -> None:
        for one in found:
            if has_weak_references(one):
                self._known[id(one)] = weakref.ref(one)
            elif id(type(one)) in self._untracked or _is_numpys_own(one):
                self._held[id(one)] = one
            else:
                self._view = None  # holding it would hold the user's objects: the next re-run walks the heap

    def _let_go(self) -> None:
        alone = _reference_counts({0: object()})[0]
        counts = _reference_counts(self._held)
        self._held = {key: self._held[key] for key, count in zip(self._held, counts, strict=True) if count > alone}


def _visible(kinds: frozenset[int], untracked: frozenset[int]) -> list[Any]:
    return [*instances_of(kinds), *(untracked_instances_of(untracked) if untracked else ())]


def _reference_counts(held: dict[int, Any]) -> list[int]:
    return list(map(sys.getrefcount, list(held.values())))


def _is_numpys_own(generator: Any) -> bool:
    """Tell whether a generator of NumPy's draws from a source of NumPy's, which was seeded by a class of NumPy's."""
    source = slot(generator, type(generator), "_bit_generator")
    base = extension_class("numpy.random.bit_generator", "BitGenerator")
    seed = None if base is None else slot(source, base, "_seed_seq")
    return in_package(type(source), "numpy.random") and (seed is None or in_package(type(seed), "numpy.random"))


_FOLLOWED = _Followed()
