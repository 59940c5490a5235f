"""The piece of a path that an edge is named by: objects, each of which refers to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.explain.edges.lookups import Lookups


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
    """One edge, and the position in the path of the object that it leads from."""

    text: str
    label: str
    position: int


class Chain:
    """Objects, each of which refers to the next: a whole path or a part of one.

    Args:
        objects: the chain, the object whose edge is to be named first.
        lookups: shared by all chains of one search.

    Attributes:
        looked_beyond: whether an object beyond the end was asked for: a longer chain may have another name.
    """

    __slots__ = ("looked_beyond", "lookups", "objects")

    def __init__(self, objects: Sequence[Any], lookups: Lookups) -> None:
        self.objects = objects
        self.lookups = lookups
        self.looked_beyond = False

    def at(self, position: int) -> Any:
        """The object at `position`, or None beyond the end."""
        return self.objects[position] if self.reaches(position) else None

    def reaches(self, position: int) -> bool:
        """Whether there is an object at `position`."""
        if position < len(self.objects):
            return True
        self.looked_beyond = True
        return False

    def label(self, position: int) -> str:
        """The type of the object at `position`, as a path shows it."""
        return self.lookups.label(type(self.objects[position]))
