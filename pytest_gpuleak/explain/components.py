"""Strongly connected components: objects that lead to each other, as those on a ring do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_gpuleak.heap.budget import Budget


def components(
    starts: Iterable[int], children: Callable[[int], Sequence[int]], budget: Budget
) -> dict[int, int] | None:
    """Return for all below `starts` the number of its component; None where the budget is spent.

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
