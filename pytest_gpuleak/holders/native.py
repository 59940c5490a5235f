"""The seam for what the collector cannot see: references that C and C++ objects hold.

A finder is asked only for objects that nothing visible refers to, once in a search. The search then goes on from the
containers that the finder names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.holders.heap import Deadline


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


def finders() -> list[NativeEdgeFinder]:
    """The finders whose libraries are imported."""
    from pytest_gpuleak.holders.native_numpy import ArrayBases

    return [ArrayBases()]
