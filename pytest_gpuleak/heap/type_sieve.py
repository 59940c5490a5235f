"""Pick the objects of some types from many, at the speed of C."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from collections.abc import Set as AbstractSet

HAVE_GC: Final = 1 << 14
"""Flag of types whose objects the collector can look into (Include/object.h, Py_TPFLAGS_HAVE_GC)."""

TYPE_FLAGS: Final[Any] = type.__dict__["__flags__"]


def may_refer(kind: type) -> bool:
    """Tell whether the collector can look into objects of a type. No class counts: an untracked one is static."""
    return bool(TYPE_FLAGS.__get__(kind) & HAVE_GC) and not safe_access.is_subclass(kind, type)


class TypeIds(NamedTuple):
    """The ids of the types of some objects: of `each`, in their order, and `all` of them once."""

    each: list[int]
    all: set[int]


class TypeTable:
    """The types met so far by id, since a metaclass may define the hash. Keep it no longer than a `TypeSieve`."""

    def __init__(self) -> None:
        self.types: dict[int, type] = {}

    def ids_of(self, objects: Collection[object]) -> TypeIds:
        """Return the ids of the objects' types, which are then in the table."""
        each = list(map(id, map(type, objects)))
        kinds = set(each)
        if not kinds <= self.types.keys():
            self.types.update(zip(each, map(type, objects), strict=True))
        return TypeIds(each, kinds)


class TypeSieve:
    """Pick objects by their type. `belongs` is asked once for each type; sieves of one walk may share a table.

    Keep a sieve no longer than a walk with paused collections: a new class may get the id of one that is gone.
    """

    def __init__(self, belongs: Callable[[type], bool], table: TypeTable | None = None) -> None:
        self._belongs = belongs
        self._table = table or TypeTable()
        self._met: set[int] = set()
        self._picked: set[int] = set()

    def picks_any_of(self, kinds: AbstractSet[int]) -> bool:
        """Tell whether objects of these types, which the table has (`TypeTable.ids_of`), are picked."""
        for kind in kinds - self._met:
            if self._belongs(self._table.types[kind]):
                self._picked.add(kind)
            self._met.add(kind)
        return not self._picked.isdisjoint(kinds)

    def marks(self, objects: Collection[object], types: TypeIds | None = None) -> list[bool]:
        """Return for each object whether it is picked. `types` are the ids of the objects' types, if they are known."""
        if types is None:
            types = self._table.ids_of(objects)
        if not self.picks_any_of(types.all):
            return [False] * len(objects)
        return list(map(self._picked.__contains__, types.each))

    def pick(self, objects: Collection[object]) -> list[object]:
        """Return the objects that are picked."""
        return list(compress(objects, self.marks(objects)))
