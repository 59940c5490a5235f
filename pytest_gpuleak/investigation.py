"""The evidence on one suspect: what each of its runs left behind, and who holds it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pytest_gpuleak.arrays.protocol import ArrayFramework, ArrayReading, OriginLog, select_arrays
from pytest_gpuleak.collector import get_objects
from pytest_gpuleak.scan import array_types, framework_of
from pytest_gpuleak.settle import Rung, settle
from pytest_gpuleak.verdict import Evidence, Survivor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.detector import Detector
    from pytest_gpuleak.findings import Holder, HolderKind

HOLDER_RANK: dict[HolderKind, int] = {
    "module": 0, "class": 0, "cache": 0, "fixture": 0, "thread": 1, "frame": 1, "traceback": 2, "native": 3, "unknown": 4,
}  # fmt: skip
"""Of several arrays that share a storage, the one with the most actionable holder speaks for it."""


@dataclasses.dataclass(frozen=True)
class _Leftover:
    """One array that a run left, as plain data."""

    run: int
    reading: ArrayReading


class Investigation:
    """Collects the runs of one suspect. Between calls it holds ids and plain data, no array.

    Args:
        detector: finds the arrays.
        frameworks: read them.
    """

    def __init__(self, detector: Detector, frameworks: Sequence[ArrayFramework]) -> None:
        self._detector = detector
        self._frameworks = frameworks
        self._left: dict[int, _Leftover] = {}  # by id: an array born later at the same address replaces a dead one
        self._cycles: tuple[ArrayReading, ...] = ()
        self._survivors: list[Survivor] = []
        self._index: dict[tuple[int, int], int] = {}  # by run and storage
        self._alive: list[frozenset[int]] = []
        self._first: frozenset[int] = frozenset()
        self._runs = 0

    def add_run(self, arrays: list[object], rungs: Sequence[Rung]) -> bool:
        """Settle what a run left and note what stays.

        Args:
            arrays: strong references to the arrays that it left; emptied here.
            rungs: the ladder to climb first.

        Returns:
            Whether anything stays.
        """
        readings = self._read(arrays)
        arrays[:] = [array for array in arrays if id(array) in readings]
        settled = settle(arrays, rungs)
        if self._runs == 0:
            self._cycles = tuple(readings[identity] for identity in settled.cycles)
        left = {identity: _Leftover(self._runs, readings[identity]) for identity in settled.alive}
        indices = frozenset(map(self._index_of, left.values()))
        if self._runs == 0:
            self._first = indices
        self._left.update(left)
        self._runs += 1
        return bool(settled.alive)

    def look(self, origins: OriginLog | None = None) -> None:
        """Note which of the arrays left so far are alive now, and who holds them.

        To be called after the run, or after each but the first where there are several.

        Args:
            origins: the creating lines noted during the last run.
        """
        from pytest_gpuleak.holders.heap import PausedCollector

        with self._detector.whole_heap(), PausedCollector():
            self._look(origins or {})

    def evidence(self) -> Evidence:
        """All that was found, for `verdict.judge`."""
        alive = [self._first, *self._alive] if self._runs > 1 else [self._first]
        return Evidence(tuple(self._survivors), tuple(alive), self._cycles)

    @property
    def confirmed(self) -> bool:
        """Whether a re-run has been looked at."""
        return bool(self._alive)

    @property
    def identities(self) -> set[int]:
        """Ids of the arrays left behind so far."""
        return set(self._left)

    def _read(self, arrays: list[object]) -> dict[int, ArrayReading]:
        readings = {}
        for array in arrays:
            reading = framework_of(array, self._frameworks).read(array)
            if reading is not None:
                readings[reading.identity] = reading
        return readings

    def _index_of(self, left: _Leftover) -> int:
        key = (left.run, left.reading.storage)
        if key not in self._index:
            self._index[key] = len(self._survivors)
            self._survivors.append(Survivor(left.run, left.reading))
        return self._index[key]

    def _look(self, origins: OriginLog) -> None:
        from pytest_gpuleak.holders.search import explain

        targets, shared = self._find()
        explanations = explain(targets, ignore={id(targets)})
        alive = set()
        best: dict[int, tuple[int, int]] = {}
        for target, explanation in zip(targets, explanations, strict=True):
            left = self._left[id(target)]
            index = self._index_of(left)
            alive.add(index)
            rank = (HOLDER_RANK[explanation.holder.kind], len(explanation.holder.path))
            if index not in best or rank < best[index]:
                best[index] = rank
                self._survivors[index] = self._with_holder(
                    self._survivors[index], left, explanation.holder, explanation.pattern, shared
                )
            created = origins.get(left.reading.storage) if left.run == self._runs - 1 else None
            if created is not None:
                self._survivors[index] = dataclasses.replace(self._survivors[index], created=created)
        targets.clear()
        self._alive.append(frozenset(alive))

    def _find(self) -> tuple[list[object], set[int]]:
        """The arrays left that are alive, and the storages that other arrays use too."""
        arrays = select_arrays(get_objects(), array_types(self._frameworks))
        targets, shared = [], set()
        for array in arrays:
            if id(array) in self._left:
                targets.append(array)
            else:
                shared.add(framework_of(array, self._frameworks).storage(array))
        return targets, shared

    def _with_holder(
        self, survivor: Survivor, left: _Leftover, holder: Holder, pattern: str, shared: set[int]
    ) -> Survivor:
        larger = left.reading if left.reading.bytes > survivor.reading.bytes else survivor.reading
        return dataclasses.replace(
            survivor, reading=larger, owned=left.reading.storage not in shared, holder=holder, pattern=pattern
        )
