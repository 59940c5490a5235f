"""Describe the reference cycle that keeps an array. It can only be read before the first collection frees it."""

from __future__ import annotations

import sys
import types
from gc import get_referents
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.explain.paths import Writer, describe
from pytest_gpuleak.explain.reference_graph import Graph
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.collector import PausedCollector
from pytest_gpuleak.heap.referrers import reaches_everything, referrers, visible_blocks
from pytest_gpuleak.model.findings import CYCLE_ROOT, Holder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

STEPS: Final = 1_000_000
"""Steps of the search for one test's cycles (`heap.budget`). Some suites leave cycles in nearly every test."""

MAX_ARRAYS: Final = 3
"""Arrays whose cycles are searched for in a test: the largest."""

MAX_OBJECTS: Final = 3_000
MAX_LEVELS: Final = 24
"""References between an array and the cycle that keeps it, at most."""

_CONTAINERS: Final[frozenset[type]] = frozenset({dict, list, tuple, set, frozenset, types.CellType})


_SUSPENDED: Final[dict[type, str]] = {
    types.CoroutineType: "cr",
    types.GeneratorType: "gi",
    types.AsyncGeneratorType: "ag",
}


class CycleReader:
    """Find the cycles of arrays. It keeps no object between calls."""

    def __init__(self, is_user_file: Callable[[str], bool]) -> None:
        self._is_user_file = is_user_file

    def read(self, arrays: Sequence[object], sizes: Mapping[int, int]) -> dict[int, Holder]:
        """Return, by the ids of the arrays, the cycles that the largest ones hang on. `sizes` are bytes by id."""
        budget = Budget(STEPS)
        found: dict[int, Holder] = {}
        largest = sorted(range(len(arrays)), key=lambda index: -sizes.get(id(arrays[index]), 0))[:MAX_ARRAYS]
        with PausedCollector():
            blocks = visible_blocks()  # of the epoch alone: what is older has no part in a cycle of the test's
            for index in largest:
                if budget.spent:
                    break
                ring, way = _nearest_ring(arrays[index], {id(arrays)}, budget, blocks)
                if ring:
                    found[id(arrays[index])] = self._written(ring, way)
                    ring.clear()
                    way.clear()
        return found

    def _written(self, ring: list[Any], way: list[Any]) -> Holder:
        first = min(range(len(ring)), key=lambda index: _rank(ring[index]))
        chain = [*ring[first:], *ring[: first + 1]]
        written = Writer({}).rootless(chain, "unknown", CYCLE_ROOT)
        # A ring of asyncio's objects alone says nothing of the user's function, which hangs on it.
        file, line = self._place([*ring, *way])
        text = describe(chain[0]) + "".join([step.edge for step in written.path])
        chain.clear()
        return Holder("unknown", CYCLE_ROOT, text, written.path, file, line)

    def _place(self, ring: Sequence[Any]) -> tuple[str | None, int | None]:
        """Return the user's line at which a cycle closes, where a traceback, a function or what runs one tells it."""
        for value in ring:
            kind = type(value)
            if kind is types.TracebackType:
                code, line = value.tb_frame.f_code, value.tb_lineno
            elif kind is types.FrameType:
                code, line = value.f_code, value.f_lineno
            elif kind is types.FunctionType:
                code, line = value.__code__, value.__code__.co_firstlineno
            elif kind in _SUSPENDED:
                code, frame = (getattr(value, f"{_SUSPENDED[kind]}_{name}") for name in ("code", "frame"))
                line = code.co_firstlineno if frame is None else frame.f_lineno
                frame = None
            else:
                continue
            if self._is_user_file(code.co_filename):
                return code.co_filename, line
        return None, None


def _rank(value: object) -> tuple[bool, bool, str]:
    """Sort first where a reader begins: a class, or an instance of one, by name, so that like cycles are written alike."""
    return not safe_access.is_a(value, type), type(value) in _CONTAINERS, safe_access.public_label(type(value))


def _is_made_late(value: object) -> bool:
    """Tell whether an object is a class that no module has: a function's, or `type(name, bases, {})`. Each is in a cycle."""
    if not safe_access.is_a(value, type):
        return False
    name: str = safe_access.class_qualname(value)  # type: ignore[arg-type]  # a class, as checked
    first, *nested = name.split(".")
    module = safe_access.loaded_module(safe_access.class_module(value) or "")  # type: ignore[arg-type]
    namespace = safe_access.module_dict(module) or {}
    return first not in namespace or "<locals>" in nested or (not nested and namespace[first] is not value)


def _nearest_ring(array: object, ignored: set[int], budget: Budget, blocks: int) -> tuple[list[object], list[object]]:
    """Return the objects of the nearest cycle that leads to an array, and those in between; empty without a cycle."""
    graph = Graph()
    graph.add(array)
    frontier: list[object] = [array]
    ring: list[int] = []
    ignored = ignored | {id(graph.objects), id(frontier)}
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        ignored.add(id(frame))
        frame = frame.f_back
    for _ in range(MAX_LEVELS):
        level = referrers(frontier, budget, blocks)
        wanted = set(map(id, frontier))
        further: list[object] = []
        closing: list[tuple[int, int]] = []
        for parent in level:
            if id(parent) in ignored or parent is level or (reaches_everything(parent) and not _is_made_late(parent)):
                continue
            children = dict.fromkeys(id(child) for child in get_referents(parent) if id(child) in wanted)
            for child in children:
                graph.connect(id(parent), child)
                if id(parent) in graph.objects:
                    closing.append((id(parent), child))
            if graph.add(parent):
                further.append(parent)
        level.clear()
        rings = (graph.chain_to_any(parent, (child,), budget) for parent, child in closing)
        ring = next(filter(None, rings), [])
        if ring or not further or len(graph.objects) > MAX_OBJECTS or budget.spent:
            break
        frontier[:] = further
    ways = [graph.chain_to_any(id(array), (node,), budget) for node in ring]
    way = min(filter(None, ways), key=len, default=[])
    found = [graph.objects[node] for node in ring], [graph.objects[node] for node in way[1:-1]]
    graph.objects.clear()
    frontier.clear()
    return found
