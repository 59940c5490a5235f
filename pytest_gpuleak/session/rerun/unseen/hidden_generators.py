"""Find NumPy's generators again, which have no weak references: by the lock of each, and from an object above it."""

from __future__ import annotations

import weakref
from itertools import chain
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.engine.settle.attempts import Backoff
from pytest_gpuleak.heap.collector import get_referrers
from pytest_gpuleak.heap.library_types import extension_class
from pytest_gpuleak.heap.referrers import get_referents, untouchable_modules
from pytest_gpuleak.heap.safe_access import is_a, slot
from pytest_gpuleak.heap.weak_references import has_weak_references
from pytest_gpuleak.session.rerun.unseen.ended_frames import EndedFrames

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

_LEVELS: Final = 4
"""Levels above a generator that are searched: an item of a list, in a dict, of a module."""

_MOST_WALKS: Final = 32
"""Walks for each search at most, itself a walk for each level: where places do not last, it is not made each time."""

_MOST_IN_FRAMES: Final = 8
"""Generators without a place that are looked for in frames that have ended, at two walks over the heap for each."""

_MOST_VALUES: Final = 20_000
"""Values at one depth below an object above which nothing is looked for there."""

_MOST_REFERENTS: Final = 10_000
"""References of an object above which it is no place to look into again and again."""


class HiddenGenerators:
    """The generators without weak references. No reference is kept to one: their locks tell whether they are alive.

    They are looked for in the objects where earlier ones were found, an attribute that is given a new one among them.
    Those of failed tests' frames are not looked for: pytest keeps the frames, but no test draws from them.
    """

    def __init__(self) -> None:
        self._locks: dict[int, weakref.ref[Any]] = {}
        self._out_of_reach: dict[int, weakref.ref[Any]] = {}
        self._spots: list[Spot] = []
        self._walks = 0
        self._searches = Backoff(1, _MOST_WALKS)

    def note(self, found: Iterable[Any]) -> bool:
        """Note generators; return whether the lock of each is known."""
        for one in found:
            lock = _lock_of(one)
            if lock is None:
                return False
            known = self._out_of_reach.get(id(one))
            if known is None or known() is not lock:
                self._locks[id(one)] = weakref.ref(lock)
        return True

    def note_walk(self, found: Sequence[Any], ignore: Collection[int] = ()) -> bool:
        """Note what a walk over the heap, which must be visible, has found; return whether each lock is known.

        `ignore` has the ids of the caller's containers.
        """
        self._locks.clear()
        if not self.note(found):
            return False
        self._walks += 1
        if self._walks > 1 and self.alive(()) is None and self._searches.is_due():
            self._spots += _find_spots(found, ignore)
            self._leave_out_of_ended_frames(found, ignore)
        return True

    def alive(self, young: Sequence[Any]) -> list[Any] | None:
        """Return those alive, of which `young` are at hand; None where only a walk over the heap can tell."""
        self._locks = {identity: known for identity, known in self._locks.items() if known() is not None}
        found = self._located(young)
        if len(found) < len(self._locks) or any(_lock_of(one) is not self._locks[id(one)]() for one in found.values()):
            return None
        return list(found.values())

    def _located(self, young: Sequence[Any]) -> dict[int, Any]:
        found = {id(one): one for one in young if id(one) in self._locks}
        for spot in self._spots:
            if len(found) < len(self._locks):
                found.update((id(one), one) for one in spot.look() if id(one) in self._locks)
        return found

    def _leave_out_of_ended_frames(self, found: Sequence[Any], ignore: Collection[int]) -> None:
        missing = self._locks.keys() - self._located(()).keys()
        if len(missing) > _MOST_IN_FRAMES:
            return
        ended = EndedFrames((id(found), *ignore))
        for one in found:
            if id(one) in missing and ended.alone_hold(one):
                self._out_of_reach[id(one)] = self._locks.pop(id(one))


class Spot(NamedTuple):
    """Where a generator was found: an object with weak references, `levels` containers above it."""

    root: weakref.ref[Any]
    levels: int

    def look(self) -> list[Any]:
        """Return all that lies as deep below the object, in containers without weak references."""
        containers = [self.root()]
        for level in range(self.levels + 1):
            inside = [values for values in map(get_referents, containers) if len(values) <= _MOST_REFERENTS]
            values = list(chain.from_iterable(inside))
            if len(values) > _MOST_VALUES:
                return []
            if level < self.levels:
                containers = [value for value in values if not has_weak_references(value)]
        return values


def _lock_of(generator: Any) -> Any:
    """Return the lock that a generator's state keeps for as long as it lives; None where it is unknown."""
    kind = extension_class("numpy.random.bit_generator", "BitGenerator")
    state = slot(generator, type(generator), "_bit_generator")
    lock = slot(state, kind, "lock") if kind is not None and is_a(state, kind) else None
    return lock if lock is not None and has_weak_references(lock) else None


def _find_spots(generators: Sequence[Any], ignore: Collection[int]) -> list[Spot]:
    found: dict[int, Spot] = {}  # by the generator
    below: dict[int, set[int]] = {id(one): {id(one)} for one in generators}
    targets = list(generators)
    own = {id(generators), id(targets), *ignore, *untouchable_modules()}
    for level in range(_LEVELS):
        above: dict[int, set[int]] = {}
        parents = get_referrers(*targets)
        own.add(id(parents))
        targets.clear()
        for parent in parents:
            if id(parent) in own or type(parent) is FrameType:
                continue
            inside = get_referents(parent)
            led_to = below.keys() & map(id, inside) if len(inside) <= _MOST_REFERENTS else set()
            inside.clear()
            reached = set().union(*map(below.__getitem__, led_to))
            if not has_weak_references(parent):
                above[id(parent)] = reached
                targets.append(parent)
                continue
            for identity in reached:
                if identity not in found or type(parent) is ModuleType:
                    found[identity] = Spot(weakref.ref(parent), level)
        parents.clear()
        below = above
        if not targets or found.keys() >= set(map(id, generators)):
            break
    targets.clear()
    # Weak references must not be hashed or compared, which runs the code of what they refer to.
    return list({(id(spot.root()), spot.levels): spot for spot in found.values()}.values())
