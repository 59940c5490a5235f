"""What naming the edges of many paths looks up more than once: one pass over a container, however many targets it has.

To name the edge from a list of 100,000 arrays to one of them takes a pass over the list; to name all of them must not
take 100,000.
"""

from __future__ import annotations

from operator import indexOf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Found = TypeVar("Found")

SMALL: Final = 16
"""Items up to which a container is read for each question, rather than indexed."""

_PASSES: Final = 2
"""Passes over a large container for children that were not announced; then all its items are indexed."""


class _Index:
    """Where a container holds its items, by their ids.

    Attributes:
        places: key or position by the id of an item; the first of several.
        passes: times that the container was read for an item that was not announced.
        announced: whether the items that were announced are among `places`.
        whole: whether all items are.
    """

    __slots__ = ("announced", "passes", "places", "whole")

    def __init__(self) -> None:
        self.places: dict[int, Any] = {}
        self.passes = 0
        self.announced = False
        self.whole = False


class Lookups:
    """Shared by all paths of one search. It refers to objects of the heap: drop it after the search."""

    def __init__(self) -> None:
        self._wanted: dict[int, set[int]] = {}
        self._indices: dict[tuple[str, int], _Index] = {}
        self._once: dict[tuple[str, int], Any] = {}

    def announce(self, parent: int, child: int) -> None:
        """Note the ids of two objects whose edge will be asked for."""
        self._wanted.setdefault(parent, set()).add(child)

    def index(self, parent: Any, child: object, base: Any) -> int | None:
        """The position of `child` in a sequence of the built-in type `base`; None where it is not there."""
        if base.__len__(parent) <= SMALL:
            try:
                return indexOf(map(id, base.__iter__(parent)), id(child))
            except ValueError:
                return None
        found: tuple[int] | None = self._find("index", parent, child, lambda: enumerate(_items(base, parent)))
        return None if found is None else found[0]

    def contains(self, parent: Any, child: object, base: Any) -> bool:
        """Whether a set of the built-in type `base` holds `child`."""
        return self._find("item", parent, child, lambda: enumerate(_items(base, parent))) is not None

    def key(self, mapping: Any, child: object) -> tuple[Any] | None:
        """The key under which a dict holds `child`, in a tuple; None where it holds it under none."""
        if dict.__len__(mapping) <= SMALL:
            for key, value in list(dict.items(mapping)):
                if value is child:
                    return (key,)
            return None
        return self._find("key", mapping, child, lambda: iter(list(dict.items(mapping))))

    def is_key(self, mapping: Any, child: object) -> bool:
        """Whether `child` is one of a dict's keys."""
        return self._find("keys", mapping, child, lambda: enumerate(_items(dict, mapping))) is not None

    def once(self, what: str, value: object, build: Callable[[], Found]) -> Found:
        """What `build` returns, called once for each `what` and object; the object must live as long as the search."""
        place = (what, id(value))
        if place not in self._once:
            self._once[place] = build()
        found: Found = self._once[place]
        return found

    def label(self, cls: type) -> str:
        """The type as a path shows it."""
        return self.once("label", cls, lambda: safe_access.public_label(cls))

    def members(self, value: object) -> list[tuple[str, Any]]:
        """Names and values of the slots and C members that are set on an object."""
        cls = type(value)
        return safe_access.members(value, self.once("members", cls, lambda: safe_access.member_descriptors(cls)))

    def _find(
        self, kind: str, parent: object, child: object, pairs: Callable[[], Iterator[tuple[Any, object]]]
    ) -> tuple[Any] | None:
        """The place of `child` among `pairs` of places and items, in a tuple; None where it is not there."""
        index = self._indices.get((kind, id(parent)))
        if index is None:
            index = self._indices[kind, id(parent)] = _Index()
        wanted = self._wanted.get(id(parent), ())
        if id(child) not in index.places and not index.whole:
            if id(child) in wanted and not index.announced:
                index.announced = True
                _note(index, pairs(), wanted)
            elif id(child) not in wanted:
                index.passes += 1
                index.whole = index.passes > _PASSES
                _note(index, pairs(), None if index.whole else {id(child)})
        return (index.places[id(child)],) if id(child) in index.places else None


def _items(base: Any, parent: Any) -> list[Any]:
    """The items of a built-in container, copied in one go: another thread may change it meanwhile."""
    try:
        return list(base.__iter__(parent))
    except RuntimeError:
        return []


def _note(index: _Index, pairs: Iterable[tuple[Any, object]], wanted: Iterable[int] | None) -> None:
    """Add the places of the items whose ids are wanted, or of all."""
    places = index.places
    for place, item in pairs:
        if wanted is None or id(item) in wanted:
            places.setdefault(id(item), place)
