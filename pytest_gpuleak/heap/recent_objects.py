"""Find referrers among the objects made last, without a pass over the whole heap.

What a test leaves hangs on its own objects first, often fifteen in a row (a closure's cell, its function, a dict). An
object needs a pass only if its reference count says that others refer to it too.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from types import FrameType
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.heap.reference_counts import LOOKUP_REFERENCES, UNCOUNTED, getrefcount
from pytest_gpuleak.heap.referrers import get_objects, get_referents, untouchable_modules

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pytest_gpuleak.heap.budget import Budget

AT_AN_END: Final = 20_000
"""Objects that are listed from either end of the collector's lists: the last run's, and those of the run before.

A collection appends survivors to the older list, `gc.unfreeze` all that was frozen (Python/gc.c, gc_list_merge).
"""

WORTH_IT: Final = 4 * AT_AN_END
"""Objects of a heap from which the list is quicker than a few passes."""


class RecentObjects:
    """The objects made last, without the search's own, and which refer to what. It keeps them alive: drop it."""

    def __init__(self, own: Collection[int], budget: Budget) -> None:
        listed = get_objects()
        recent = [] if len(listed) < WORTH_IT else listed[:AT_AN_END] + listed[-AT_AN_END:]
        listed.clear()  # it may hold itself, and collections are paused
        # A frame kept beyond its function's end would keep the function's variables, of the search's own too.
        self.objects = [value for value in recent if type(value) is not FrameType]
        recent.clear()
        self._ids = set(map(id, self.objects))
        self._parents: dict[int, list[int]] = {}
        left_out = untouchable_modules().union(own)
        parents = self._parents
        for position, container in enumerate(self.objects):
            if id(container) in left_out:
                continue
            referents = get_referents(container)
            if budget.worked(1 + len(referents)):
                return
            for child in map(id, referents):
                known = parents.get(child)
                if known is None:
                    parents[child] = [position]
                elif known[-1] != position:
                    known.append(position)

    def referrers(self, wanted: Collection[int], objects: Mapping[int, object]) -> tuple[list[object], set[int]]:
        """Return referrers of objects, and the ids of the `wanted` ones of which these are all.

        No other container of the caller's than `objects`, by id, refers to them.
        """
        parents = self._parents
        positions = set(chain.from_iterable(parents.get(node, ()) for node in wanted))
        found = [self.objects[position] for position in sorted(positions)]
        explained: Counter[int] = Counter()
        for container in found:
            explained.update(filter(wanted.__contains__, map(id, get_referents(container))))
        complete = set()
        for node in wanted:
            value = objects[node]
            references = getrefcount(value)
            if references < UNCOUNTED and references - LOOKUP_REFERENCES - (node in self._ids) == explained[node] > 0:
                complete.add(node)
            del value
        return found, complete
