"""The seam for what the collector cannot see: references that C and C++ objects hold.

The frameworks are asked first, in rounds (`ReferenceFinder`). Finders walk over the whole heap: they are asked once in a
search, for objects with references that nothing visible accounts for, and only when the frameworks have no answer. The search
then goes on from the containers that a finder names.

Some references no one can see: a DLPack capsule (``numpy.from_dlpack(tensor)``) holds a tensor in a C structure that has
no way in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from pytest_gpuleak.heap.referrers import get_referents

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuleak.heap.referrers import Deadline


RING_ROOT: Final = "a cycle through native code that no collector frees"
"""Where a path begins that no root leads to: a ring of references, some of which C++ holds."""


@dataclass(frozen=True, slots=True)
class Link:
    """A reference that `gc.get_referrers` does not show.

    Attributes:
        parent: who holds it.
        child: what it leads to.
        edge: how it is written in Python (``.base``), or None where the ordinary names know it.
    """

    parent: object
    child: object
    edge: str | None = None


class NativeEdgeFinder(Protocol):
    """Finds who holds an object by ways that the collector does not see. One file a library."""

    def find(self, orphans: Sequence[object], extra: Sequence[object], deadline: Deadline) -> list[Link]:
        """Links that lead to `orphans`, over as many steps as it takes to reach something that the collector sees.

        Args:
            orphans: live objects that nothing visible refers to.
            extra: objects that are held where `gc.get_objects` does not look: running functions' locals.
            deadline: when to stop and return what was found so far.
        """


class Descent:
    """A walk down from untracked containers through those inside them to what the search wants. One a look.

    Each container is read once, whatever holds it. What is inside is no ring: a container that the collector does not
    track holds nothing that it tracks.

    Args:
        ends: whether an object is one at which the way down ends.
        leads_on: whether such an end leads to what is wanted.
        hides: whether an object is an untracked container that may hold others.
        deadline: when to stop.

    Attributes:
        links: the references on the ways to what is wanted.
    """

    def __init__(
        self,
        ends: Callable[[object], bool],
        leads_on: Callable[[object], bool],
        hides: Callable[[object], bool],
        deadline: Deadline,
    ) -> None:
        self.links: list[Link] = []
        self._ends = ends
        self._leads_on = leads_on
        self._hides = hides
        self._deadline = deadline
        self._met: set[int] = set()
        self._leading: set[int] = set()
        self._above: dict[int, list[tuple[object, object]]] = {}

    def enter(self, container: object) -> None:
        """Look into a container, and into those inside it."""
        pending = [container]
        while pending:
            parent = pending.pop()
            if id(parent) in self._met:
                continue
            self._met.add(id(parent))
            children = get_referents(parent)
            if self._deadline.worked(1 + len(children)):
                return
            for child in children:
                if self._ends(child):
                    if self._leads_on(child):
                        self._link(parent, child)
                elif self._hides(child):
                    if id(child) in self._leading:
                        self._link(parent, child)
                    else:
                        self._above.setdefault(id(child), []).append((parent, child))
                        pending.append(child)

    def _link(self, parent: object, child: object) -> None:
        """Note a reference that leads on, and those above it."""
        pending = [(parent, child)]
        while pending:
            parent, child = pending.pop()
            self.links.append(Link(parent, child))
            if id(parent) not in self._leading:
                self._leading.add(id(parent))
                pending.extend(self._above.pop(id(parent), ()))
