"""The part of the heap that a search has seen, and what it knows for further searches. References are kept as ids, so that one dict alone has user objects."""

from __future__ import annotations

from gc import get_referents
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pytest_gpuleak.explain.roots.roots import Root
    from pytest_gpuleak.heap.budget import Budget

Cut = tuple[int, int]
"""An ignored reference: the ids of the referrer and of the referent."""


class Graph:
    """The visited part of the heap above the targets. It keeps every object in it alive.

    `roots` has the best root by rank and object's id. Referrers of `expanded` were searched, of `leaves` need not be.
    """

    def __init__(self) -> None:
        self.objects: dict[int, object] = {}
        self.roots: dict[int, dict[int, Root]] = {}
        self._parents = _Neighbours()
        self._children = _Neighbours()
        self._known: dict[tuple[int, ...], tuple[int, Forest]] = {}
        self.edges = 0
        self._attached = 0
        self.expanded: set[int] = set()
        self.leaves: set[int] = set()

    def add(self, value: object) -> bool:
        """Add an object, and tell whether it is new."""
        if id(value) in self.objects:
            return False
        self.objects[id(value)] = value
        return True

    def connect(self, parent: int, child: int) -> None:
        """Record that `parent` refers to `child`, both ids of known objects."""
        self.edges += 1
        self._parents.add(child, parent)
        self._children.add(parent, child)

    def unheld(self, nodes: Iterable[int]) -> set[int]:
        """Return those of `nodes` without known referrers."""
        return {node for node in nodes if node not in self._parents}

    def attach(self, child: int, root: Root) -> None:
        """Attach a root to an object. Of several the nearest counts, then the preferred one."""
        self._attached += 1
        roots = self.roots.setdefault(root.rank, {})
        known = roots.get(child)
        if known is None or (root.hops, root.preference) < (known.hops, known.preference):
            roots[child] = root

    def orphans(self, nodes: Iterable[int]) -> list[int]:
        """Return those of `nodes` that are expanded and have no referrers."""
        return [node for node in nodes if node in self.expanded and not self._parents.of(node)]

    def unexpanded(self, starts: Iterable[int]) -> list[int]:
        """Return objects above `starts` whose referrers were not searched yet, nearest first."""
        return [node for node in self.above(starts) if node not in self.expanded and node not in self.leaves]

    def above(self, starts: Iterable[int]) -> list[int]:
        """Return the objects from which `starts` can be reached, themselves included, nearest first."""
        return _reach(starts, self._parents)

    def below(self, starts: Iterable[int]) -> set[int]:
        """Return the ids of all that can be reached from `starts`, themselves included."""
        return set(_reach(starts, self._children))

    def on_rings(self, references: Collection[tuple[int, int]], budget: Budget) -> list[tuple[int, int]] | None:
        """Return those of the references that lie on a ring; None where the budget is spent."""
        found = components((child for _, child in references), self._children.of, budget)
        if found is None:
            return None
        return [(parent, child) for parent, child in references if found.get(parent, -1) == found[child]]

    def parents_of(self, nodes: Iterable[int]) -> set[int]:
        """Return the ids of all that refer to one of `nodes`."""
        return set(chain.from_iterable(map(self._parents.of, nodes)))

    def nearest_roots(self, ranks: Sequence[int], wanted: set[int], budget: Budget) -> Forest:
        """Return the shortest paths to `wanted` from roots of these ranks, as far as found within the budget."""
        version = self.edges + self._attached
        known_version, known = self._known.get(tuple(ranks), (-1, None))
        if known is not None and version == known_version and (known.complete or wanted <= known.distance.keys()):
            return known
        attached: dict[int, Root] = {}
        for rank in ranks:
            for node, root in self.roots.get(rank, {}).items():
                if node not in attached or root.hops < attached[node].hops:
                    attached[node] = root
        seeds = sorted((root.hops, root.preference, node) for node, root in attached.items())
        forest = self._grow(Forest(attached), [(hops, node) for hops, _, node in seeds], wanted, inf, budget)
        self._known[tuple(ranks)] = (version, forest)
        return forest

    def _grow(
        self, forest: Forest, seeds: Sequence[tuple[int, int]], wanted: Iterable[int], limit: float, budget: Budget
    ) -> Forest:
        """Add what the seeds, pairs of distance and id in order, lead to within `limit`, until all `wanted` are met."""
        distance, above, top = forest.distance, forest.above, forest.top
        level: list[int] = []
        depth, next_seed = 0, 0
        missing = set(wanted)
        while missing and depth < limit and (level or next_seed < len(seeds)):
            while next_seed < len(seeds) and seeds[next_seed][0] <= depth:
                node = seeds[next_seed][1]
                next_seed += 1
                if node not in distance:
                    distance[node], above[node], top[node] = depth, None, node
                    level.append(node)
            following: list[int] = []
            for node in level:
                missing.discard(node)
                children = self._children.of(node)
                if budget.worked(1 + len(children)):
                    return forest
                for child in children:
                    if child not in distance:
                        distance[child], above[child], top[child] = depth + 1, node, top[node]
                        following.append(child)
            level = following
            depth += 1
        forest.complete = bool(missing)
        return forest

    def nearest(self, starts: Iterable[int], limit: int, budget: Budget) -> Forest:
        """Return the shortest paths from any of `starts`, of at most `limit` references, to all that they lead to."""
        return self._grow(Forest({}), [(0, node) for node in starts], self.objects, limit, budget)

    def chain_to_any(self, start: int, ends: Collection[int], budget: Budget | None = None) -> list[int]:
        """Return the ids on a shortest path from one of `ends` to the target `start`; empty without one, or none within the budget."""
        below: dict[int, int | None] = {start: None}
        order = [start]
        for node in order:  # it grows meanwhile
            if node in ends:
                return _followed(node, below)
            parents = self._parents.of(node)
            if budget is not None and budget.worked(1 + len(parents)):
                break
            for parent in parents:
                if parent not in below:
                    below[parent] = node
                    order.append(parent)
        return []


class _Neighbours:
    """For each object the ids at the other end of its references, without a list for objects with one neighbour."""

    def __init__(self) -> None:
        self._one: dict[int, int] = {}
        self._more: dict[int, list[int]] = {}

    def __contains__(self, node: int) -> bool:
        return node in self._one

    def add(self, node: int, other: int) -> None:
        if self._one.setdefault(node, other) is not other:
            self._more.setdefault(node, []).append(other)

    def of(self, node: int) -> Sequence[int]:
        first = self._one.get(node)
        if first is None:
            return ()
        more = self._more.get(node)
        return (first,) if more is None else (first, *more)


def _reach(starts: Iterable[int], neighbours: _Neighbours) -> list[int]:
    order = list(dict.fromkeys(starts))
    seen = set(order)
    for node in order:  # it grows meanwhile
        for other in neighbours.of(node):
            if other not in seen:
                seen.add(other)
                order.append(other)
    return order


def _followed(node: int | None, following: Mapping[int, int | None], limit: float = inf) -> list[int]:
    found: list[int] = []
    while node is not None and len(found) < limit:
        found.append(node)
        node = following[node]
    return found


class Forest:
    """Shortest paths to objects, by ids: each one's object `above`, the path's `top`, and the references in between.

    `complete` tells whether everything below the roots was met.
    """

    def __init__(self, roots: dict[int, Root]) -> None:
        self.roots = roots
        self.distance: dict[int, int] = {}
        self.above: dict[int, int | None] = {}
        self.top: dict[int, int] = {}
        self.complete = False

    def root_of(self, node: int) -> Root:
        """Return the root above an object that was reached."""
        return self.roots[self.top[node]]

    def chain(self, node: int, limit: float = inf) -> list[int]:
        """Return the ids from the beginning of the path down to `node`, the last `limit` of them."""
        return _followed(node, self.above, limit)[::-1]


def components(  # noqa: C901 - Tarjan's algorithm, as it is published
    starts: Iterable[int], children: Callable[[int], Sequence[int]], budget: Budget
) -> dict[int, int] | None:
    """Return for all below `starts` the number of its strongly connected component, within which each leads to each other; None where the budget is spent.

    Tarjan's algorithm (Depth-first search and linear graph algorithms, 1972), without recursion.
    """
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    open_nodes: list[int] = []
    found: dict[int, int] = {}

    def enter(node: int) -> tuple[int, Iterator[int]]:
        order[node] = lowest[node] = len(order)
        open_nodes.append(node)
        return node, iter(children(node))

    for start in starts:
        path = [] if start in order else [enter(start)]
        while path:
            node, rest = path[-1]
            for child in rest:
                if budget.worked(1):
                    return None
                if child not in order:
                    path.append(enter(child))
                    break
                if child not in found:
                    lowest[node] = min(lowest[node], order[child])
            else:
                path.pop()
                if path:
                    above = path[-1][0]
                    lowest[above] = min(lowest[above], lowest[node])
                if lowest[node] == order[node]:
                    number, member = len(found), -1
                    while member != node:
                        member = open_nodes.pop()
                        found[member] = number
    return found


MAX_KNOWN: Final = 100_000
"""References that are remembered. Where a search has met more, nothing is, and the next one passes over the heap."""


class KnownReferrers:
    """The referrers that searches of one heap have met: each level costs a pass over all of it.

    Holds ids, and what the searches' own dicts hold by them.
    """

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
