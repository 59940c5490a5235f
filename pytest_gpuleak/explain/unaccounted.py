"""Find objects with referrers that the collector does not show: the interpreter's reference count, less those found."""

from __future__ import annotations

from collections import Counter
from gc import get_referents
from itertools import chain
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.reference_protocol import UNTOLD
from pytest_gpuleak.explain.roots.root import EXCEPTION
from pytest_gpuleak.heap.interpreter import LOOKUP_REFERENCES, UNCOUNTED, getrefcount
from pytest_gpuleak.heap.referrers import untouchable_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuleak.adapters.reference_protocol import ReferenceFinder
    from pytest_gpuleak.explain.reference_graph import Graph
    from pytest_gpuleak.heap.budget import Budget


class Hidden:
    """Objects with hidden referrers, by id, sorted by who may hold them.

    Examined are `nodes`: ids of expanded objects with nothing left to find above them, as many as the budget admits.
    `counted` references, by id, are the search's own.

    Attributes:
        by_native: held perhaps by a framework: arrays with owners beside Python, and what has a reference too many.
        by_reference: those with a reference too many, beside native code's to the Python object of an array.
        unheld: the ids of those that nothing visible refers to.
    """

    def __init__(self, graph: Graph, nodes: Sequence[int], counted: Mapping[int, int], budget: Budget) -> None:
        self.by_native: dict[int, object] = {}
        self.by_reference: dict[int, object] = {}
        self.unheld: set[int] = set()
        self._graph = graph
        self._nodes = nodes
        self._counted = counted
        roots = (
            nodes for rank, nodes in graph.roots.items() if rank != EXCEPTION
        )  # which is named for want of a holder
        self._rooted = set(chain.from_iterable(roots))  # a reference from no container
        self._explained = self._count_visible(budget)

    def _count_visible(self, budget: Budget) -> Counter[int] | None:
        """Count the references to the nodes from containers that were met; None where the budget ends that."""
        objects, wanted, untouchable = self._graph.objects, set(self._nodes), untouchable_modules()
        found: Counter[int] = Counter()
        for parent in self._graph.parents_of(self._nodes):
            if parent not in untouchable and parent in objects:
                referents = get_referents(objects[parent])
                if budget.worked(1 + len(referents)):
                    return None
                found.update(filter(wanted.__contains__, map(id, referents)))
                del referents  # it refers to the objects that are counted in `find`
        return found

    def find(self, linked: Mapping[int, int], owners: Callable[[object], int | None]) -> Hidden:
        """Sort the objects; `linked` references, by id, are native code's, and known. `owners`: see `owner_counter`."""
        explained, rooted = self._explained, self._rooted
        if explained is None:
            return self
        for node in self._nodes:
            value = self._graph.objects[node]
            if not explained[node] and node not in rooted:
                self.unheld.add(node)
            references = getrefcount(value)
            if references >= UNCOUNTED:
                references = 0
            extra = references - LOOKUP_REFERENCES - explained[node] - self._counted.get(node, 0)
            shared = owners(value)
            untold = shared is None or shared == UNTOLD
            if shared and not untold:
                self.by_native[node] = value
                extra -= 1
            elif untold:
                extra -= linked.get(node, 0)
            if extra > 0 and node not in rooted:
                self.by_reference[node] = value
                if untold:
                    self.by_native[node] = value
            del value
        return self


def owner_counter(frameworks: Sequence[ReferenceFinder]) -> Callable[[object], int | None]:
    """Make a function that asks each framework in turn who owns an array: see `ReferenceFinder.owner_counter`."""
    counters = [framework.owner_counter() for framework in frameworks]
    if len(counters) == 1:
        return counters[0]

    def owners(value: object) -> int | None:
        return next((found for count in counters if (found := count(value)) is not None), None)

    return owners
