"""The seam for what the collector cannot see: references that C and C++ objects hold.

torch is asked first, in rounds (`native_torch`). The finders here walk over the whole heap: they are asked once in a
search, for objects with references that nothing visible accounts for, and only when torch has no answer. The search
then goes on from the containers that a finder names.

Some references no one can see: a DLPack capsule (``numpy.from_dlpack(tensor)``) holds a tensor in a C structure that has
no way in; hooks of a tensor that is gone, see `native_hooks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.holders.heap import Deadline


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


def finders() -> list[NativeEdgeFinder]:
    """The finders whose libraries are imported."""
    from pytest_gpuleak.holders.native_numpy import ArrayBases
    from pytest_gpuleak.holders.untracked import UntrackedContainers

    return [ArrayBases(), UntrackedContainers()]
