"""What the suite's own clean-up costs: collections of the heap and emptied caches that its fixtures and tests call."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TOLD_SHARE: Final = 0.05
"""Part of a run from which its clean-up is told in the terminal. No verdict depends on it."""

MAX_LISTED: Final = 20
"""Callers that a report lists, those that took longest; the others are one entry for each kind of call."""

OTHERS: Final = "others"


@dataclasses.dataclass(frozen=True)
class CleanUp:
    """The calls of one kind by one caller, of all workers.

    Attributes:
        what: ``gc.collect``: collections of the whole heap; ``empty_cache``: of a device's allocator.
        by: ``fixture 'cleanup'``, or the function that made the call (``TestModel.tearDown()``).
        file: where the fixture or function is defined, relative to the rootdir where it lies below it.
        line: the line that its definition begins in.
        count: the number of calls.
        seconds: how long the calls took.
    """

    what: Literal["gc.collect", "empty_cache"]
    by: str
    file: str | None
    line: int | None
    count: int
    seconds: float


def add_up(entries: Iterable[CleanUp]) -> list[CleanUp]:
    """Add up the calls of equal kind and caller; return those that took longest first, `MAX_LISTED` and the others."""
    whole = sum_by_caller(entries)
    rest = (dataclasses.replace(one, by=OTHERS, file=None, line=None) for one in whole[MAX_LISTED:])
    return whole[:MAX_LISTED] + sum_by_caller(rest)


def total_s(entries: Iterable[CleanUp]) -> float:
    """Return the seconds that all calls took."""
    return sum(one.seconds for one in entries)


def is_worth_telling(entries: Sequence[CleanUp], run_s: float) -> bool:
    """Tell whether the calls took more than `TOLD_SHARE` of a run of `run_s` seconds."""
    return total_s(entries) > TOLD_SHARE * run_s


def sum_by_caller(entries: Iterable[CleanUp]) -> list[CleanUp]:
    """Add up the calls of equal kind and caller; return those that took longest first."""
    sums: dict[tuple[str, str, str, int], CleanUp] = {}
    for one in entries:
        key = (one.what, one.by, one.file or "", one.line or 0)
        before = sums.get(key)
        if before is not None:
            count, seconds = before.count + one.count, before.seconds + one.seconds
            sums[key] = dataclasses.replace(one, count=count, seconds=seconds)
        else:
            sums[key] = one
    return [one for _, one in sorted(sums.items(), key=lambda item: (-item[1].seconds, item[0]))]
