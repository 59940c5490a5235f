"""Strongly connected components: objects that lead to each other, as those on a ring do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_gpuleak.heap.referrers import Deadline


def components(
    starts: Iterable[int], children: Callable[[int], Sequence[int]], deadline: Deadline
) -> dict[int, int] | None:
    """Return for all below `starts` the number of its component; None where the time is up.

    Tarjan's algorithm (Depth-first search and linear graph algorithms, 1972), without recursion.
    """
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    open_nodes: list[int] = []
    found: dict[int, int] = {}
    for start in starts:
        path: list[tuple[int, Iterator[int]]] = []
        following: int | None = start if start not in order else None
        while following is not None or path:
            if following is not None:
                node, following = following, None
                order[node] = lowest[node] = len(order)
                open_nodes.append(node)
                below = children(node)
                if deadline.worked(1 + len(below)):
                    return None
                path.append((node, iter(below)))
            node, rest = path[-1]
            for child in rest:
                if child not in order:
                    following = child
                    break
                if child not in found:
                    lowest[node] = min(lowest[node], order[child])
            if following is not None:
                continue
            path.pop()
            if path:
                above = path[-1][0]
                lowest[above] = min(lowest[above], lowest[node])
            if lowest[node] == order[node]:
                number = len(found)
                member = -1
                while member != node:
                    member = open_nodes.pop()
                    found[member] = number
    return found
