"""Keep the epoch's arrays young through a full collection.

A full collection makes all survivors old and frozen, and only a walk over the whole heap could then find the epoch's
arrays. So they are moved back to the young generation, by `PyObject_GC_UnTrack` and `PyObject_GC_Track` of CPython's C
API, whose lists are consistent while the collector's callbacks run (Modules/gcmodule.c, `invoke_gc_callback`).
"""

from __future__ import annotations

import functools
import gc
import types
import weakref
from array import array
from collections import defaultdict
from contextlib import suppress
from mmap import mmap
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.engine.limits import MOST_CONTAINERS
from pytest_gpuleak.heap.collector import get_objects
from pytest_gpuleak.heap.immortal_containers import is_tracked
from pytest_gpuleak.heap.interpreter import c_function

if TYPE_CHECKING:
    from collections.abc import Callable


_CONTAINERS: Final = frozenset({dict, list, tuple, set, types.MethodType, types.CellType})


class KeepYoung:
    """Follow the epoch's arrays through a full collection; `lost` are ids of arrays without weak references.

    The list of arrays is **emptied**. The weak references end soon, since `torch.utils.swap_tensors` refuses them.
    """

    def __init__(self, arrays: list[object]) -> None:
        self.lost: set[int] = set()
        self._followed: list[tuple[int, weakref.ref[Any]]] = []
        while arrays:
            array = arrays.pop()
            try:
                self._followed.append((id(array), weakref.ref(array)))
            except TypeError:  # a type without weak references
                self.lost.add(id(array))

    def restore(self) -> set[int]:
        """Make living arrays young, after the collection; return ids that may be alive but old (torch resurrects)."""
        move = make_young()
        left = self.lost
        for identity, reference in self._followed:
            array = reference()
            if array is None or move is None or not is_tracked(array):
                left.add(identity)
            else:
                move(array)
        self._followed.clear()
        return left


class YoungIds:
    """Ids of objects, kept in memory that the heap's counter does not count: a run would seem to have added them."""

    def __init__(self) -> None:
        self._memory: mmap | None = None

    def __bool__(self) -> bool:
        """Tell whether any id is kept."""
        return self._memory is not None

    def add(self, objects: list[object]) -> None:
        """Add the ids of objects; where there is no memory for them, none is kept."""
        self._keep(self.all().union(map(id, objects)))

    def remove(self, objects: list[object]) -> None:
        """Remove the ids of objects, which may have those of others that have died."""
        self._keep(self.all().difference(map(id, objects)))

    def _keep(self, ids: set[int]) -> None:
        self.clear()
        if ids:
            data = array("Q", ids).tobytes()
            with suppress(OSError):
                self._memory = mmap(-1, len(data))
                self._memory[:] = data

    def all(self) -> set[int]:
        """Return all ids."""
        return set() if self._memory is None else set(array("Q", self._memory[:]))

    def clear(self) -> None:
        """Forget them."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def _moves(untrack: Callable[[object], None], track: Callable[[object], None]) -> bool:
    """Try both functions on an object of our own: tracking an object twice would end the process."""
    known: list[object] = [[]]
    untrack(known)
    if is_tracked(known):
        return False
    track(known)
    return is_tracked(known)


@functools.cache
def make_young() -> Callable[[object], None] | None:
    """Return a function that moves an object to the youngest generation; None if the interpreter has none."""
    try:
        from ctypes import py_object as box

        untrack, track = (c_function(name, None, box) for name in ("PyObject_GC_UnTrack", "PyObject_GC_Track"))
    except (ImportError, AttributeError):
        return None

    def move(value: object) -> None:
        # ctypes asks an argument for its ``__class__``, which may be the user's code, and fails for a dead weak proxy. It
        # asks only the box where there is one.
        boxed = box(value)
        untrack(boxed)
        track(boxed)

    return move if _moves(lambda value: untrack(box(value)), lambda value: track(box(value))) else None


def make_cycle_young(owner: object) -> None:
    """Move an object and the plain containers by which it refers to itself to the youngest generation.

    pytest creates the instance of a `unittest.TestCase` when it collects, so it is older than the epoch. One that refers
    to itself (``addTypeEqualityFunc(torch.Tensor, self.assertEqualTensors)``), also through what the test has made
    (``self.model = Model(loss=lambda x: self.scale * x)``), takes what the test stored in it along into a cycle that only
    a collection of the whole heap would free.
    """
    move = make_young()
    if move is None:
        return
    young = set(map(id, get_objects()))
    found = {id(owner): owner}
    parents: dict[int, list[int]] = defaultdict(list)
    waiting = [owner]
    older = 1
    for one in waiting:
        is_plain = one is owner or type(one) in _CONTAINERS  # not a function, whose globals are a dict
        for child in gc.get_referents(one):
            is_old = is_plain and type(child) in _CONTAINERS and is_tracked(child)
            if child is not owner and id(child) not in young and not is_old:
                continue
            parents[id(child)].append(id(one))
            # What is young is bounded by what the test has made, and each collection walks over it.
            if id(child) not in found and (id(child) in young or older < MOST_CONTAINERS):
                older += id(child) not in young
                found[id(child)] = child
                waiting.append(child)
    cycle: set[int] = set()
    above = [id(owner)]
    while above:
        for identity in parents.get(above.pop(), ()):
            if identity not in cycle:
                cycle.add(identity)
                above.append(identity)
    for identity in cycle - young:
        move(found[identity])
