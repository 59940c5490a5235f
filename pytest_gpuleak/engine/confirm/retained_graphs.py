"""Note how much memory the autograd graphs behind the arrays of one suspect retain."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.bulk import read_arrays
from pytest_gpuleak.engine.confirm.holder_search import count_graphs
from pytest_gpuleak.engine.stages import GRAPHS, Stage
from pytest_gpuleak.model.evidence import Root, root_of
from pytest_gpuleak.model.findings import NOT_READ

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.adapters.protocol import ArrayFramework
    from pytest_gpuleak.engine.confirm.left_arrays import LeftArrays
    from pytest_gpuleak.explain.explanation import Explanation
    from pytest_gpuleak.heap.budget import Budget
    from pytest_gpuleak.model.findings import Autograd
    from pytest_gpuleak.model.readings import ArrayReading


class RetainedGraphs:
    """Counts the graphs behind what is `left`, by root. `guard` gives the context of a stage that may fail."""

    def __init__(
        self,
        left: LeftArrays,
        arrays: Sequence[ArrayFramework],
        frameworks: Frameworks,
        guard: Callable[[Stage], AbstractContextManager[Any]],
    ) -> None:
        self._left = left
        self._arrays = arrays
        self._frameworks = frameworks
        self._guard = guard
        self.by_root: dict[Root, Autograd] = {}
        """What the graphs behind each root retain."""

    def note(
        self,
        arrays: Sequence[object],
        explanations: Sequence[Explanation],
        readings: Mapping[int, ArrayReading],
        budget: Budget | None = None,
    ) -> None:
        """Note the graphs behind the arrays of the earliest run among `arrays`, within the `budget`."""
        with self._guard(GRAPHS):
            self._count(arrays, explanations, readings, budget)

    def note_recognised(self, arrays: Sequence[object], found: Sequence[Explanation]) -> None:
        """Note the graphs behind arrays whose holders were recognised, unless some are known."""
        with self._guard(GRAPHS):
            if not self.by_root:
                self._count(arrays, found, read_arrays(arrays, self._arrays), None)

    def _count(
        self,
        arrays: Sequence[object],
        explanations: Sequence[Explanation],
        readings: Mapping[int, ArrayReading],
        budget: Budget | None,
    ) -> None:
        left = self._left
        runs = [left.by_id[id(array)].run if id(array) in left.by_id else left.runs for array in arrays]
        first = min(runs, default=0)
        groups: dict[Root, list[object]] = defaultdict(list)
        for array, explanation, run in zip(arrays, explanations, runs, strict=True):
            reading = readings.get(id(array))
            if reading is not None and run == first:
                groups[root_of(reading.device, explanation.holder)].append(array)
        # Should the count fail, nothing is known of any of them.
        before, self.by_root = self.by_root, {**self.by_root, **dict.fromkeys(groups, NOT_READ)}
        self.by_root = before | count_graphs(groups, self._frameworks, budget)
