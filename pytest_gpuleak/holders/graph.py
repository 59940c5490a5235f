"""What the search has seen of the heap: objects, and who refers to whom.

Edges are kept as ids, so that one dict alone refers to strangers: everything here is itself on the heap that is searched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pytest_gpuleak.holders.roots import Root


class Graph:
    """The part of the heap above the targets that was visited; every object in it is kept alive meanwhile.

    Attributes:
        objects: objects by id.
        roots: the best root attached to an object, by rank and the object's id.
    """

    def __init__(self) -> None:
        self.objects: dict[int, object] = {}
        self.roots: dict[int, dict[int, Root]] = {}
        self._parents: dict[int, list[int]] = {}
        self._children: dict[int, list[int]] = {}
        self.expanded: set[int] = set()
        self.leaves: set[int] = set()

    def add(self, value: object) -> bool:
        """Add an object; whether it is new."""
        if id(value) in self.objects:
            return False
        self.objects[id(value)] = value
        return True

    def connect(self, parent: int, child: int) -> None:
        """Note that `parent` refers to `child`, both ids of objects that were added."""
        parents = self._parents.setdefault(child, [])
        parents.append(parent)
        self._children.setdefault(parent, []).append(child)

    def attach(self, child: int, root: Root) -> None:
        """Attach a root to an object; of several the nearest one stays, then the preferred one."""
        roots = self.roots.setdefault(root.rank, {})
        known = roots.get(child)
        if known is None or (root.hops, root.preference) < (known.hops, known.preference):
            roots[child] = root

    def orphans(self, starts: Iterable[int]) -> list[int]:
        """Expanded objects above `starts` that nothing refers to, nearest first."""
        return [node for node in self.above(starts) if node in self.expanded and not self._parents.get(node)]

    def unexpanded(self, starts: Iterable[int]) -> list[int]:
        """Objects above `starts` whose referrers were not looked for yet, nearest first."""
        return [node for node in self.above(starts) if node not in self.expanded and node not in self.leaves]

    def above(self, starts: Iterable[int]) -> list[int]:
        """The objects from which `starts` can be reached, themselves included, nearest first."""
        order = list(dict.fromkeys(starts))
        seen = set(order)
        for node in order:  # it grows meanwhile
            for parent in self._parents.get(node, ()):
                if parent not in seen:
                    seen.add(parent)
                    order.append(parent)
        return order

    def parents_of(self, nodes: Iterable[int]) -> set[int]:
        """The ids of all that refer to one of `nodes`."""
        found: set[int] = set()
        for node in nodes:
            found.update(self._parents.get(node, ()))
        return found

    def nearest_roots(self, ranks: Sequence[int], wanted: set[int]) -> dict[int, tuple[int, list[int], Root]]:
        """For each of `wanted` that roots of these ranks lead to: distance, the chain of ids down to it, the root."""
        seeds: list[tuple[int, tuple[int, str], int]] = []
        attached: dict[int, Root] = {}
        for rank in ranks:
            for node, root in self.roots.get(rank, {}).items():
                if node not in attached or root.hops < attached[node].hops:
                    attached[node] = root
        for node, root in attached.items():
            seeds.append((root.hops, root.preference, node))
        seeds.sort()
        distance: dict[int, int] = {}
        above: dict[int, int | None] = {}
        level: list[int] = []
        depth, next_seed = 0, 0
        missing = set(wanted)
        while missing and (level or next_seed < len(seeds)):
            while next_seed < len(seeds) and seeds[next_seed][0] <= depth:
                node = seeds[next_seed][2]
                next_seed += 1
                if node not in distance:
                    distance[node], above[node] = depth, None
                    level.append(node)
            following: list[int] = []
            for node in level:
                missing.discard(node)
                for child in self._children.get(node, ()):
                    if child not in distance:
                        distance[child], above[child] = depth + 1, node
                        following.append(child)
            level = following
            depth += 1
        found: dict[int, tuple[int, list[int], Root]] = {}
        for node in wanted:
            if node in distance:
                chain = _chain(node, above)
                found[node] = (distance[node], chain, attached[chain[0]])
        return found

    def chain_from(self, end: int, start: int, limit: int) -> list[int]:
        """The ids on a shortest way down from `end` to the target `start`, or its last `limit` objects."""
        above: dict[int, int | None] = {start: None}
        order = [start]
        for node in order:
            if node == end:
                break
            for parent in self._parents.get(node, ()):
                if parent not in above:
                    above[parent] = node
                    order.append(parent)
        if end not in above:
            return [start]
        chain: list[int] = []
        below: int | None = end
        while below is not None:
            chain.append(below)
            below = above[below]
        return chain[-limit:]

    def chain_to_any(self, start: int, ends: Collection[int]) -> list[int]:
        """The ids on a shortest way down from one of `ends` to the target `start`; empty where none leads there."""
        for node in self.above((start,)):
            if node in ends:
                return self.chain_from(node, start, len(self.objects))
        return []


def _chain(node: int, above: dict[int, int | None]) -> list[int]:
    """The ids from a root's object down to `node`."""
    chain: list[int] = []
    current: int | None = node
    while current is not None:
        chain.append(current)
        current = above[current]
    chain.reverse()
    return chain
