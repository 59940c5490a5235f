"""The part of a path that names a reference: objects, each of which refers to the next."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.explain.edges.lookups import Lookups


class Edge(NamedTuple):
    """One named reference, as it is written (``[0]``, ``.loss``, `` (item of set)``), and what it leads from, in words.

    It covers `length` of the chain's references; `cached`: it leads into an `lru_cache`.
    """

    text: str
    label: str
    length: int = 1
    cached: bool = False


class Step(NamedTuple):
    """One reference, and the position in the path of the object that it leads from."""

    text: str
    label: str
    position: int
    cached: bool = False


class Chain:
    """A path or a part of one. If `looked_beyond` its end, a longer chain may be named otherwise."""

    __slots__ = ("looked_beyond", "lookups", "objects")

    def __init__(self, objects: Sequence[Any], lookups: Lookups) -> None:
        self.objects = objects
        self.lookups = lookups
        self.looked_beyond = False

    def at(self, position: int) -> Any:
        """Return the object at `position`, or None beyond the end."""
        return self.objects[position] if self.reaches(position) else None

    def reaches(self, position: int) -> bool:
        """Tell whether there is an object at `position`."""
        if position < len(self.objects):
            return True
        self.looked_beyond = True
        return False

    def item(self, mapping: Any, position: int) -> str | None:
        """Write ``[key]`` where a dict holds the object at `position`; None where it does not."""
        key = self.lookups.key(mapping, self.at(position))
        return None if key is None else f"[{safe_access.key_text(key[0])}]"

    def attribute(self, namespace: Any, position: int) -> str | None:
        """Write ``.name`` where a namespace holds the object at `position` under such a name; else None."""
        key = self.lookups.key(namespace, self.at(position))
        return None if key is None or not safe_access.is_attribute_name(key[0]) else f".{key[0]}"

    def label(self, position: int) -> str:
        """Return the type of the object at `position`, as a path shows it; of a method its name, too."""
        value = self.objects[position]
        name = safe_access.definition_name(value.__func__) if type(value) is types.MethodType else None
        return f"method {name}" if name else self.lookups.label(type(value))


class Met(NamedTuple):
    """Objects on a path that matter for the root's name, by position.

    `pinned` is the exception whose traceback the path goes through, or the traceback itself; `task` the last task below
    the event loop `loop`, before the path has `left` asyncio's own objects.
    """

    error: tuple[int, Any] | None = None
    pinned: tuple[int, Any] | None = None
    loop: int | None = None
    task: tuple[int, Any] | None = None
    left: bool = False


NOTHING_MET: Final = Met()


class Line(NamedTuple):
    """A path, as input for its root's name: its steps, perhaps not all, and by position the objects on it."""

    steps: list[Step]
    objects: dict[int, Any]
    end: int
    met: Met
