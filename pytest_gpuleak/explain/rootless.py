"""Explain targets that no root leads to: held by C++, by a ring through C++, by a cycle, or not found out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.native_references import led_from_ring
from pytest_gpuleak.heap.hidden_references import RING_ROOT
from pytest_gpuleak.model.findings import CYCLE_ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.explain.native_references import NativeReferences
    from pytest_gpuleak.explain.paths import Writer
    from pytest_gpuleak.explain.reference_graph import Graph
    from pytest_gpuleak.heap.budget import Budget
    from pytest_gpuleak.model.findings import Holder

MAX_EDGES: Final = 24
"""References shown of a path that ends at no root."""

MAX_RING: Final = 256
"""Objects on the longest ring that is named as the holder: a chain of operations makes it long."""

MAX_BY_ITSELF: Final = 64
"""Number of targets that are examined one by one."""

MAX_WORK: Final = 500_000
"""Objects that these walks may meet in all. After that the other targets are handled together."""

NATIVE_ROOT: Final = "C++"
CROWD_ROOT: Final = "unknown (too many containers refer to it)"
TIMEOUT_ROOT: Final = "unknown (not explained in full: the search met its limit of objects)"


@dataclasses.dataclass(eq=False, repr=False)
class Rootless:
    """Write the holders of targets that no root leads to, where the search came to its end and left nothing out."""

    _graph: Graph
    _native: NativeReferences
    _writer: Writer
    _budget: Budget
    exhausted: bool
    exact: bool
    _work: int = 0

    def holders(self, targets: Sequence[int]) -> dict[int, Holder]:
        """Return the holders by the ids of the targets."""
        if not (self.exhausted and self.exact):
            return self._together(targets)
        found: dict[int, Holder] = {}
        for target in targets[:MAX_BY_ITSELF]:
            if self._work > MAX_WORK or self._budget.spent:
                break
            found[target] = self._by_itself(target)
        rest = targets[len(found) :]
        return found | (self._together(rest) if rest else {})

    def _by_itself(self, target: int) -> Holder:
        graph = self._graph
        above = graph.above((target,))
        self._work += len(above)
        ring = self._native.ring(target, set(above), self._budget)
        if 0 < len(ring) <= MAX_RING:
            return self._written(ring, RING_ROOT)
        chain = graph.chain_to_any(target, graph.orphans(above)[:1]) or graph.chain_to_any(target, self._native.hidden)
        return self._written(chain[-MAX_EDGES:], NATIVE_ROOT) if chain else self._not_found(target)

    def _together(self, targets: Sequence[int]) -> dict[int, Holder]:
        graph, native, budget = self._graph, self._native, self._budget
        everywhere = len(graph.objects)
        rings = native.short_rings(MAX_RING, budget)
        forests = [(RING_ROOT, graph.nearest(rings, everywhere, budget))]
        if self.exhausted and self.exact:  # else a ring alone is sure to keep a target
            orphans = graph.orphans(graph.above(targets))
            forests += [(NATIVE_ROOT, graph.nearest(some, everywhere, budget)) for some in (orphans, native.hidden)]
        found: dict[int, Holder] = {}
        for target in targets:
            root, forest = next((pair for pair in forests if target in pair[1].distance), ("", None))
            if budget.worked(64 * MAX_EDGES):
                found[target] = self._writer.rootless([graph.objects[target]], "unknown", TIMEOUT_ROOT)
            elif forest is not None:
                chain = forest.chain(target, MAX_EDGES)
                ring = rings.get(chain[0], ()) if root == RING_ROOT else ()
                found[target] = self._written(led_from_ring(ring, chain) if ring else chain, root)
            else:
                found[target] = self._not_found(target)
        return found

    def _written(self, chain: Sequence[int], root: str) -> Holder:
        objects = [self._graph.objects[node] for node in chain]
        use = self._native.root_of(objects[0]) if root == NATIVE_ROOT else ""
        return self._writer.rootless(objects, "native", f"{root} ({use})" if use else root)

    def _not_found(self, target: int) -> Holder:
        reason = TIMEOUT_ROOT if not self.exhausted else CYCLE_ROOT if self.exact else CROWD_ROOT
        return self._writer.rootless([self._graph.objects[target]], "unknown", reason)
