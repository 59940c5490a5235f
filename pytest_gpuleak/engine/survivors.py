"""Keep the storages that a suspect's runs left: who holds each, and which line created it. Plain data."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.adapters.protocol import BACKWARD
from pytest_gpuleak.model.evidence import Survivor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pytest_gpuleak.adapters.protocol import OriginLog
    from pytest_gpuleak.explain.search import Explanation
    from pytest_gpuleak.model.findings import Holder, HolderKind
    from pytest_gpuleak.model.readings import ArrayReading
    from pytest_gpuleak.model.source_files import Origin

HOLDER_RANK: dict[HolderKind, int] = {
    "module": 0, "class": 0, "cache": 0, "fixture": 0, "thread": 1, "frame": 1, "traceback": 2, "native": 3, "unknown": 4,
}  # fmt: skip
"""Rank of a holder's kind: of several arrays that share a storage, the lowest, most actionable rank is reported."""


class Found(NamedTuple):
    """A living array, by the number of its storage, and what a search has found on it."""

    number: int
    reading: ArrayReading
    explanation: Explanation


class Survivors:
    """The storages left so far, in the order found. Arrays of one run that share a storage count once."""

    def __init__(self) -> None:
        self._all: list[Survivor] = []
        self._index: dict[tuple[int, int], int] = {}  # by run and storage
        self._traced = -1
        self._origins: OriginLog = {}

    @classmethod
    def of_run(
        cls, run: int, found: Iterable[tuple[ArrayReading, Explanation]], origins: OriginLog | None = None
    ) -> Survivors:
        """Return what a run left where all of it is named at once; `origins` has the creating lines."""
        made = cls()
        made.take_lines(run, origins or {})
        made.note(Found(made.index_of(run, one), one, why) for one, why in found)
        return made

    def take_lines(self, run: int, origins: OriginLog) -> None:
        """Take the creating lines of a run that was traced, by the storages' keys."""
        self._traced, self._origins = run, origins

    def all(self) -> tuple[Survivor, ...]:
        """Return all storages."""
        return tuple(self._all)

    def index_of(self, run: int, reading: ArrayReading) -> int:
        """Return the index of the storage of an array that a run has left; add it if it is new."""
        key = (run, reading.storage)
        if key not in self._index:
            self._index[key] = len(self._all)
            self._all.append(Survivor(run, reading))
        return self._index[key]

    def note_line(self, index: int, created: Origin) -> None:
        """Note the creating line that an array itself knows."""
        self._all[index] = self._all[index]._replace(created=created)

    def note_backward(self) -> None:
        """Note the line of the backward pass for gradients whose line is not known."""
        for index, survivor in enumerate(self._all):
            if survivor.created is None and survivor.holder is not None and _is_gradient(survivor.holder):
                self._all[index] = survivor._replace(created=self._origins.get(BACKWARD))

    def note(self, found: Iterable[Found], shared: Collection[int] = ()) -> frozenset[int]:
        """Note who holds the living arrays and where they were made; return the indices of their storages.

        `shared` are the storages that older arrays use too.
        """
        sharing: dict[int, list[Found]] = defaultdict(list)
        for one in found:
            sharing[one.number].append(one)
        for index, arrays in sharing.items():
            survivor = _with_holder(self._all[index], arrays, shared)
            created = self._line_of(survivor)
            if created is None and any(_is_gradient(one.explanation.holder) for one in arrays):
                created = self._origins.get(BACKWARD)  # for a gradient of an earlier run, too
            self._all[index] = survivor if created is None else survivor._replace(created=created)
        return frozenset(sharing)

    def _line_of(self, survivor: Survivor) -> Origin | None:
        return self._origins.get(survivor.reading.storage) if survivor.run == self._traced else None

    def note_unexplained(self, indices: Iterable[int], unknown: Holder) -> None:
        """Like `note`, with the holder `unknown` for storages whose holder no earlier run has found."""
        for index in indices:
            survivor = self._all[index]
            holder = survivor.holder
            if holder is None or (holder.kind == "unknown" and not holder.root):  # noted so before, for another reason
                holder = unknown
            self._all[index] = survivor._replace(holder=holder, created=survivor.created or self._line_of(survivor))


def _with_holder(survivor: Survivor, arrays: list[Found], shared: Collection[int]) -> Survivor:
    """Return the survivor with the most actionable holder, and the largest array that is held for itself."""
    explanations = [one.explanation for one in arrays]
    best = min(explanations, key=lambda one: (HOLDER_RANK[one.holder.kind], len(one.holder.path)))
    held = [one.reading for one in arrays if _is_held_for_itself(one.explanation.holder)]
    largest = max(held or [one.reading for one in arrays], key=lambda reading: reading.bytes)
    return survivor._replace(
        reading=largest,
        owned=largest.storage not in shared,
        holder=best.holder,
        others=best.others,
        pattern=best.pattern,
    )


def _is_gradient(holder: Holder) -> bool:
    return bool(holder.path) and holder.path[-1].edge.endswith(".grad")


def _is_held_for_itself(holder: Holder) -> bool:
    return holder.named and not (holder.path and holder.path[-1].edge.endswith("._base"))
