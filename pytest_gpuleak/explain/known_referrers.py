"""Remember who refers to what, for further searches of the same heap: each level costs a pass over all of it."""

from __future__ import annotations

from gc import get_referents
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_KNOWN: Final = 100_000
"""References that are remembered. Where a search has met more, nothing is, and the next one passes over the heap."""


class KnownReferrers:
    """The referrers that searches of one heap have met. Holds ids, and what the searches' own dicts hold by them."""

    def __init__(self) -> None:
        self._referrers: dict[int, list[int]] = {}
        self._complete: set[int] = set()
        self._missed: set[int] = set()
        self._objects: list[Mapping[int, object]] = []
        self._namespaces: dict[int, object] = {}
        self._count = 0

    def add_objects(self, objects: Mapping[int, object]) -> None:
        """Find objects by their ids here too: a search's own dict, which is alive as long as this."""
        self._objects.append(objects)

    def note(self, child: int, container: int) -> None:
        """Note that a container, by id, refers to an object."""
        if child not in self._complete and self._count <= MAX_KNOWN:
            self._count += 1
            self._referrers.setdefault(child, []).append(container)

    def note_namespace(self, child: int, namespace: object) -> None:
        """Like `note`, for a module's globals, which no search keeps."""
        self._namespaces[id(namespace)] = namespace
        self.note(child, id(namespace))

    def miss(self, nodes: Iterable[int]) -> None:
        """Note that a referrer of these objects was met and not noted."""
        self._missed.update(nodes)

    def complete(self, nodes: set[int]) -> None:
        """Note that all referrers of these objects were met."""
        if self._count <= MAX_KNOWN:
            self._complete |= nodes - self._missed
        else:
            self._complete.clear()
            self._referrers.clear()

    def referrers(self, wanted: Iterable[int]) -> tuple[list[object], set[int]]:
        """Return the referrers of those objects of which all are known, and the ids of these objects.

        Naming a path may read an instance's ``__dict__``, which makes one: it refers to the values then, and the instance
        no more (inline values, Python 3.11). What is no longer as it was noted is unknown.
        """
        nodes = [node for node in wanted if node in self._complete]
        held: dict[int, set[int]] = {}
        for node in nodes:
            for container in self._referrers.get(node, ()):
                held.setdefault(container, set()).add(node)
        outdated: set[int] = set()
        for container, children in held.items():
            if container not in self._namespaces:
                outdated |= children.difference(map(id, get_referents(self._find(container))))
        for node in outdated:
            self._complete.discard(node)
            self._referrers.pop(node, None)
        known = set(nodes) - outdated
        return [self._find(container) for container, children in held.items() if children & known], known

    def _find(self, container: int) -> object:
        if container in self._namespaces:
            return self._namespaces[container]
        return next(objects[container] for objects in self._objects if container in objects)
