"""Arrays through a full collection: they are young after it, as they were before.

A full collection makes everything that survives old, and what is old is frozen. Which of the old objects are the epoch's
own could only be told by a look at the whole heap, a tenth of a second; suites whose teardown calls `gc.collect()` would
pay it for every test. So the epoch's arrays are taken out of the old objects once the collection is over, and put to the
young ones: `PyObject_GC_UnTrack` and `PyObject_GC_Track` of CPython's C API, whose lists are in order while the
collector's callbacks run (Modules/gcmodule.c, `invoke_gc_callback`).
"""

from __future__ import annotations

import functools
import gc
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class KeepYoung:
    """The epoch's arrays while a full collection is under way.

    They are held by weak references, which exist for the length of the collection alone: `torch.utils.swap_tensors`
    refuses an array that has one.

    Args:
        arrays: strong references to them; **emptied** here, since one kept would keep the array alive.

    Attributes:
        lost: ids of those that cannot be followed.
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
        """Make those that are alive young again. The collection is over, and everything is frozen.

        Returns:
            ids of arrays that may be alive and are old. Whose reference is dead is one of them: torch brings an array back
            that C++ still holds, and its references stay dead.
        """
        move = make_young()
        left = self.lost
        for identity, reference in self._followed:
            array = reference()
            if array is None or move is None or not gc.is_tracked(array):
                left.add(identity)
            else:
                move(array)
        self._followed.clear()
        return left


def _moves(untrack: Callable[[object], None], track: Callable[[object], None]) -> bool:
    """Whether the two do to an object of our own what they are named for: one that is tracked twice ends the process."""
    known: list[object] = [[]]
    untrack(known)
    if gc.is_tracked(known):
        return False
    track(known)
    return gc.is_tracked(known)


@functools.cache
def make_young() -> Callable[[object], None] | None:
    """A function that moves an object to the collector's youngest; None where the interpreter has none."""
    try:
        import ctypes

        untrack, track = ctypes.pythonapi.PyObject_GC_UnTrack, ctypes.pythonapi.PyObject_GC_Track
    except (ImportError, AttributeError):
        return None
    for function in (untrack, track):
        function.argtypes, function.restype = [ctypes.py_object], None
    if not _moves(untrack, track):
        return None

    def move(value: object) -> None:
        untrack(value)
        track(value)

    return move
