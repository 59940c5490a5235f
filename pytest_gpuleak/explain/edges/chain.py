"""The piece of a path that an edge is named by: objects, each of which refers to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

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


class Met(NamedTuple):
    """What matters for the root's name of the objects between it and some object, each with its position.

    Attributes:
        error: the first exception.
        pinned: the exception whose traceback is passed through, or the traceback itself.
        loop: the position of an event loop.
        task: the last task below it that nothing but parts of asyncio lie before.
        left: whether something else was met below the loop.
    """

    error: tuple[int, Any] | None = None
    pinned: tuple[int, Any] | None = None
    loop: int | None = None
    task: tuple[int, Any] | None = None
    left: bool = False


NOTHING_MET: Final = Met()


class Line(NamedTuple):
    """A path as its root's name is made from it.

    Attributes:
        steps: the edges; of a long path some in the middle may be left out.
        objects: by their positions, those that the edges lead from, and the last.
        end: the position of the last.
        met: what was met.
    """

    steps: list[Step]
    objects: dict[int, Any]
    end: int
    met: Met
