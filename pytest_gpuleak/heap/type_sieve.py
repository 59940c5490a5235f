"""Pick the objects of some types from many, at the speed of C."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

HAVE_GC: Final = 1 << 14
"""Flag of types whose objects the collector can look into (Include/object.h, Py_TPFLAGS_HAVE_GC)."""

TYPE_FLAGS: Final[Any] = type.__dict__["__flags__"]


def may_refer(kind: type) -> bool:
    """Tell whether the collector can look into objects of a type. No class counts: an untracked one is static."""
    return bool(TYPE_FLAGS.__get__(kind) & HAVE_GC) and not safe_access.is_subclass(kind, type)


class TypeSieve:
    """Pick objects by their type. `belongs` is asked once for each type, by id: its metaclass may define the hash.

    Keep a sieve no longer than a walk with paused collections: a new class may get the id of one that is gone.
    """

    def __init__(self, belongs: Callable[[type], bool]) -> None:
        self._belongs = belongs
        self._known: dict[int, bool] = {}

    def marks(self, objects: Collection[object]) -> list[bool]:
        """Return for each object whether it is picked."""
        try:
            return list(map(self._known.__getitem__, map(id, map(type, objects))))
        except KeyError:  # seldom, so most calls take one pass
            self._learn(objects)
            return self.marks(objects)

    def pick(self, objects: Collection[object]) -> list[object]:
        """Return the objects that are picked."""
        return list(compress(objects, self.marks(objects)))

    def _learn(self, objects: Collection[object]) -> None:
        kinds = dict(zip(map(id, map(type, objects)), map(type, objects), strict=True))
        for key in kinds.keys() - self._known.keys():
            self._known[key] = self._belongs(kinds[key])
