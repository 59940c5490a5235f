"""A chain of objects from a root to a target, and what naming its edges looks up more than once."""

from __future__ import annotations

from itertools import pairwise
from operator import indexOf
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuleak.holders import raw

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Edge(NamedTuple):
    """One named edge.

    Attributes:
        text: how it is written: ``[0]``, ``.loss``, `` (item of set)`` where Python has no words.
        label: what it leads from, for people: a type, ``closure variable 'x' of <lambda>``.
        length: how many references of the chain it takes in.
    """

    text: str
    label: str
    length: int = 1


class Step(NamedTuple):
    """One edge, and the position in the chain of the object that it leads from."""

    text: str
    label: str
    position: int


class Chain:
    """Objects, each of which refers to the next, and what is looked up about them more than once.

    Args:
        objects: the chain, root's own object first.
        lookups: shared by all chains of one search; finds a long list's items once for all of them.
    """

    def __init__(self, objects: Sequence[Any], lookups: Lookups) -> None:
        self.objects = objects
        self.lookups = lookups

    def at(self, position: int) -> Any:
        """The object at `position`, or None beyond the end."""
        return self.objects[position] if position < len(self.objects) else None

    def label(self, position: int) -> str:
        """The type of the object at `position`, as a path shows it."""
        return raw.public_label(type(self.objects[position]))


class Lookups:
    """Where each container holds the children that some chain leads to: one pass over a container, however many."""

    def __init__(self) -> None:
        self._wanted: dict[int, set[int]] = {}
        self._keys: dict[int, dict[int, Any]] = {}

    def announce(self, objects: Sequence[object]) -> None:
        """Note a chain whose edges will be asked for."""
        for parent, child in pairwise(objects):
            self._wanted.setdefault(id(parent), set()).add(id(child))

    def index(self, parent: object, child: object, items: Iterable[object]) -> int | None:
        """The position of `child` among `items`, the contents of the sequence `parent`; None where it is not there."""
        wanted = self._wanted.get(id(parent), set())
        if len(wanted) > 1 and id(parent) not in self._keys:
            found: dict[int, Any] = {}
            for position, item in enumerate(items):
                if id(item) in wanted:
                    found.setdefault(id(item), position)
            self._keys[id(parent)] = found
        if id(child) in wanted and id(parent) in self._keys:
            known: int | None = self._keys[id(parent)].get(id(child))
            return known
        try:
            return indexOf(map(id, items), id(child))
        except ValueError:
            return None

    def key(self, mapping: Any, child: object) -> tuple[Any] | None:
        """The key under which a dict holds `child`, in a tuple; None where it holds it under none."""
        found = self._keys.setdefault(id(mapping), {})
        if id(child) not in found:
            # An instance's dict may be asked for though no chain leads through it: Python 3.11 and later do without.
            wanted = self._wanted.pop(id(mapping), set()) | {id(child)}
            try:
                for key, value in dict.items(mapping):
                    if id(value) in wanted:
                        found.setdefault(id(value), key)
            except RuntimeError:  # another thread has changed it meanwhile
                return None
        return (found[id(child)],) if id(child) in found else None
