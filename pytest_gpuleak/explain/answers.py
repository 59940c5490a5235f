"""The answers of a search. The paths to all targets are branches of one tree, and each reference is named once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuleak.explain.paths import pattern_of, unfinished
from pytest_gpuleak.explain.roots.roots import RANKS, where_defined

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytest_gpuleak.explain.paths import Writer
    from pytest_gpuleak.explain.reference_graph import Forest, Graph
    from pytest_gpuleak.explain.roots.roots import Root
    from pytest_gpuleak.explain.ways import Reached
    from pytest_gpuleak.heap.budget import Budget
    from pytest_gpuleak.model.findings import Holder


_STEPS_AN_EDGE: Final = 64
"""Small steps (see `Budget.worked`) that naming one reference counts as."""


class Answer(NamedTuple):
    """The answer for one target that a root leads to."""

    root: Root
    holder: Holder
    pattern: str
    forest: Forest


class Answers:
    """The answers for the targets of one search. It refers to no object of the heap."""

    def __init__(self, graph: Graph, targets: Sequence[int], writer: Writer, budget: Budget) -> None:
        self._graph = graph
        self.by_target: dict[int, Answer] = {}
        forests: dict[int, Forest] = {}
        missing = set(targets)
        for rank in RANKS:
            if missing and graph.roots.get(rank):
                forest = graph.nearest_roots((rank,), missing, budget)
                forests.update(dict.fromkeys(missing.intersection(forest.distance), forest))
                missing.difference_update(forests)
        # Where an array is itself a global, each module's name for it is a holder.
        below = [(forest, target) for target, forest in forests.items() if forest.above[target] is not None]
        defined = where_defined({forest.top[node]: forest.root_of(node) for forest, node in below}, writer.places)
        _announce(forests, writer, budget)
        followed: dict[int, dict[int, Reached]] = {id(forest): {} for forest in forests.values()}
        for target in dict.fromkeys(targets):
            if target in forests:
                forest = forests[target]
                root = defined.get(forest.top[target]) or forest.root_of(target)
                # Skipped when the budget is spent: each path takes a walk of its own length.
                late = budget.worked(_STEPS_AN_EDGE)
                reached = None if late else self._follow(forest, target, writer, followed[id(forest)], budget)
                if reached is None:
                    holder = unfinished(root)
                else:
                    holder = writer.write(reached, root, graph.objects[forest.top[target]])
                self.by_target[target] = Answer(root, holder, pattern_of(holder.text), forest)

    def chain(self, target: int) -> list[object]:
        """Return the objects on the path from the root's object down to a target."""
        return [self._graph.objects[node] for node in self.by_target[target].forest.chain(target)]

    def roots(self) -> Collection[tuple[Root, object]]:
        """Return the roots, each once, with its object."""
        found: dict[str, tuple[Root, object]] = {}
        for target, (root, _, _, forest) in self.by_target.items():
            found.setdefault(root.text, (root, self._graph.objects[forest.top[target]]))
        return found.values()

    def _follow(
        self, forest: Forest, target: int, writer: Writer, followed: dict[int, Reached], budget: Budget
    ) -> Reached | None:
        objects = self._graph.objects
        branch: list[int] = []
        node: int | None = target
        while node is not None and node not in followed:
            if budget.worked(1):
                return None
            branch.append(node)
            node = forest.above[node]
        reached = None if node is None else followed[node]
        for node in reversed(branch):
            if budget.worked(_STEPS_AN_EDGE):
                return None
            value = objects[node]
            reached = writer.walker.begin(value) if reached is None else writer.walker.go_on(reached, value)
            followed[node] = reached
        return reached


def _announce(forests: dict[int, Forest], writer: Writer, budget: Budget) -> None:
    met: dict[int, set[int]] = {id(forest): set() for forest in forests.values()}
    for target, forest in forests.items():
        known, node = met[id(forest)], target
        while node not in known and not budget.worked(1):
            known.add(node)
            above = forest.above[node]
            if above is None:
                break
            writer.walker.announce(above, node)
            node = above
