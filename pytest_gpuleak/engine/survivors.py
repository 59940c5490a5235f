"""Keep the storages that a suspect's runs left: who holds each, and which line created it. Plain data."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.adapters.protocol import BACKWARD
from pytest_gpuleak.model.evidence import Survivor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuleak.adapters.protocol import OriginLog
    from pytest_gpuleak.explain.explanation import Explanation
    from pytest_gpuleak.model.findings import Holder, HolderKind, Origin
    from pytest_gpuleak.model.readings import ArrayReading

HOLDER_RANK: dict[HolderKind, int] = {
    "module": 0, "class": 0, "cache": 0, "fixture": 0, "thread": 1, "frame": 1, "traceback": 2, "native": 3, "unknown": 4,
}  # fmt: skip
"""Rank of a holder's kind: of several arrays that share a storage, the lowest, most actionable rank is reported."""


class Leftover(NamedTuple):
    """An array that a run left."""

    run: int
    reading: ArrayReading


class Survivors:
    """The storages left so far, in the order found. Arrays of one run that share a storage count once."""

    def __init__(self) -> None:
        self._all: list[Survivor] = []
        self._index: dict[tuple[int, int], int] = {}  # by run and storage

    def all(self) -> tuple[Survivor, ...]:
        """Return all storages."""
        return tuple(self._all)

    def index_of(self, left: Leftover) -> int:
        """Return the index of an array's storage; add it if it is new."""
        key = (left.run, left.reading.storage)
        if key not in self._index:
            self._index[key] = len(self._all)
            self._all.append(Survivor(left.run, left.reading))
        return self._index[key]

    def note_line(self, left: Leftover, created: Origin) -> None:
        """Note the creating line that an array itself knows."""
        index = self.index_of(left)
        self._all[index] = self._all[index]._replace(created=created)

    def note_backward(self, origins: OriginLog) -> None:
        """Note the line of the backward pass for gradients whose line is not known."""
        for index, survivor in enumerate(self._all):
            if survivor.created is None and survivor.holder is not None and _is_gradient(survivor.holder):
                self._all[index] = survivor._replace(created=origins.get(BACKWARD))

    def note(
        self, found: Sequence[tuple[Leftover, Explanation]], shared: set[int], origins: OriginLog, newest: int
    ) -> frozenset[int]:
        """Note who holds the living arrays and where they were made; return the indices of their storages.

        `shared` are the storages that older arrays use too, `origins` the creating lines of the run `newest`.
        """
        sharing: dict[int, list[tuple[Leftover, Explanation]]] = defaultdict(list)
        for left, explanation in found:
            sharing[self.index_of(left)].append((left, explanation))
        for index, arrays in sharing.items():
            survivor = _with_holder(self._all[index], arrays, shared)
            left = arrays[0][0]
            created = _line_of(left, arrays, origins, new=left.run == newest)
            self._all[index] = survivor if created is None else survivor._replace(created=created)
        return frozenset(sharing)

    def note_unexplained(self, alive: Iterable[Leftover], unknown: Holder, origins: OriginLog, newest: int) -> None:
        """Like `note`, with the holder `unknown` for arrays whose holder no earlier run has found."""
        for left in alive:
            index = self.index_of(left)
            survivor = self._all[index]
            created = origins.get(left.reading.storage) if left.run == newest else None
            holder = survivor.holder
            if holder is None or (holder.kind == "unknown" and not holder.root):  # noted so before, for another reason
                holder = unknown
            self._all[index] = survivor._replace(
                holder=holder,
                created=survivor.created or created,
            )


def _with_holder(survivor: Survivor, arrays: list[tuple[Leftover, Explanation]], shared: set[int]) -> Survivor:
    """Return the survivor with the most actionable holder, and the largest array that is held for itself."""
    if len(arrays) == 1:
        (left, explanation) = arrays[0]
        return Survivor(
            survivor.run, left.reading, left.reading.storage not in shared, explanation.holder, explanation.others,
            explanation.pattern, survivor.created,
        )  # fmt: skip
    best = min(arrays, key=lambda array: (HOLDER_RANK[array[1].holder.kind], len(array[1].holder.path)))[1]
    held = [left for left, explanation in arrays if _is_held_for_itself(explanation.holder)]
    largest = max(held or [left for left, _ in arrays], key=lambda left: left.reading.bytes)
    return survivor._replace(
        reading=largest.reading,
        owned=largest.reading.storage not in shared,
        holder=best.holder,
        others=best.others,
        pattern=best.pattern,
    )


def _line_of(
    left: Leftover, arrays: list[tuple[Leftover, Explanation]], origins: OriginLog, *, new: bool
) -> Origin | None:
    """Return the line that created a storage; for a gradient, also of an earlier run, the line of the backward pass."""
    created = origins.get(left.reading.storage) if new else None
    if created is None and any(_is_gradient(explanation.holder) for _, explanation in arrays):
        created = origins.get(BACKWARD)
    return created


def _is_gradient(holder: Holder) -> bool:
    return bool(holder.path) and holder.path[-1].edge.endswith(".grad")


def _is_held_for_itself(holder: Holder) -> bool:
    if holder.kind in ("native", "unknown"):
        return False
    return not (holder.path and holder.path[-1].edge.endswith("._base"))
