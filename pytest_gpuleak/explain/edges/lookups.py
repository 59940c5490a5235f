"""Shared lookups for naming the references of many paths: one pass over a container, however many targets it has."""

from __future__ import annotations

import dataclasses
from operator import indexOf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    Found = TypeVar("Found")

SMALL: Final = 16
"""Items up to which a container is searched for each question instead of indexed."""

_PASSES: Final = 2
"""Passes over a large container for items that were not announced, after which all its items are indexed."""


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class _Index:
    """Where a container holds its items, by their ids. `passes` counts readings for items that were not announced."""

    places: dict[int, Any] = dataclasses.field(default_factory=dict)
    passes: int = 0
    announced: bool = False
    whole: bool = False


class Lookups:
    """Lookups shared by all paths of one search. It refers to objects of the heap: drop it after the search."""

    def __init__(self) -> None:
        self._wanted: dict[int, set[int]] = {}
        self._indices: dict[tuple[str, int], _Index] = {}
        self._once: dict[tuple[str, int], Any] = {}

    def announce(self, parent: int, child: int) -> None:
        """Announce that the reference between two objects, by their ids, will be named."""
        self._wanted.setdefault(parent, set()).add(child)

    def index(self, parent: Any, child: object, base: Any) -> int | None:
        """Return the position of `child` in a sequence of the built-in type `base`, or None."""
        if base.__len__(parent) <= SMALL:
            try:
                return indexOf(map(id, base.__iter__(parent)), id(child))
            except ValueError:
                return None
        found: tuple[int] | None = self._find("index", parent, child, lambda: _items(base, parent))
        return None if found is None else found[0]

    def contains(self, parent: Any, child: object, base: Any) -> bool:
        """Tell whether a set of the built-in type `base` holds `child`."""
        return self._find("item", parent, child, lambda: _items(base, parent)) is not None

    def key(self, mapping: Any, child: object) -> tuple[Any] | None:
        """Return the key under which a dict holds `child`, in a tuple; None where there is none."""
        if dict.__len__(mapping) <= SMALL:
            for key, value in list(dict.items(mapping)):
                if value is child:
                    return (key,)
            return None
        return self._find("key", mapping, child, lambda: iter(list(dict.items(mapping))))

    def is_key(self, mapping: Any, child: object) -> bool:
        """Tell whether `child` is a key of a dict."""
        return self._find("keys", mapping, child, lambda: _items(dict, mapping)) is not None

    def once(self, what: str, value: object, build: Callable[[], Found]) -> Found:
        """Return the result of `build`, called once for each `what` and object. The object must outlive the search."""
        place = (what, id(value))
        if place not in self._once:
            self._once[place] = build()
        found: Found = self._once[place]
        return found

    def label(self, cls: type) -> str:
        """Return a type as a path shows it."""
        return self.once("label", cls, lambda: safe_access.public_label(cls))

    def members(self, value: object) -> list[tuple[str, Any]]:
        """Return names and values of the slots and C members that are set on an object."""
        cls = type(value)
        return safe_access.members(value, self.once("members", cls, lambda: safe_access.member_descriptors(cls)))

    def _find(
        self, kind: str, parent: object, child: object, pairs: Callable[[], Iterator[tuple[Any, object]]]
    ) -> tuple[Any] | None:
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


def _items(base: Any, parent: Any) -> Iterator[tuple[int, object]]:
    """Number the items of a built-in container, copied in one call, since another thread may change it."""
    try:
        return enumerate(list(base.__iter__(parent)))
    except RuntimeError:
        return enumerate(())


def _note(index: _Index, pairs: Iterable[tuple[Any, object]], wanted: Container[int] | None) -> None:
    for place, item in pairs:
        if wanted is None or id(item) in wanted:
            index.places.setdefault(id(item), place)
