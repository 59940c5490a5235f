"""What the run and its tests took: the times of the HTML report."""

from __future__ import annotations

import dataclasses
import heapq
import math
from typing import TYPE_CHECKING

from pytest_gpuleak.model.text import clean_text, count_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.model.records import TestRecord

_DEAREST_SHOWN = 10

_ID_LIMIT = 400


@dataclasses.dataclass(frozen=True)
class Cost:
    """A test whose check took long, each time as words: the test, its check, and of that re-runs and search."""

    name: str
    verdict: str
    test: str
    check: str
    reruns: str
    search: str


def describe_costs(tests: Sequence[TestRecord]) -> tuple[tuple[str, str, str], ...]:
    """Write where the run's time went: a name, the time, and what it is made of."""
    suspects = [test for test in tests if test.suspect_s]
    others = [_finite(test.overhead_s) for test in tests if not test.suspect_s]
    check, reruns, search = (sum(_part(test, name) for test in suspects) for name in ("check", "reruns", "search"))
    rows = [
        (
            "Tests",
            duration(sum(_finite(test.duration_s) for test in tests)),
            f"{count_of(len(tests), 'test')}, setup and teardown included",
        )
    ]
    if others:
        each = duration(sorted(others)[len(others) // 2])
        rows.append(
            (
                "Check where nothing was suspected",
                duration(sum(others)),
                f"{count_of(len(others), 'test')}, {each} the median",
            )
        )
    if suspects:
        parts = f"re-runs {duration(reruns)}, search for holders {duration(search)}, the rest {duration(max(0.0, check - reruns - search))}"
        rows.append(("Check of suspects", duration(check), f"{count_of(len(suspects), 'test')}: {parts}"))
    return tuple(rows)


def find_dearest(tests: Sequence[TestRecord]) -> tuple[Cost, ...]:
    """Return the suspects whose check took longest, the longest first."""
    suspects = (test for test in tests if test.suspect_s)
    return tuple(map(_cost, heapq.nlargest(_DEAREST_SHOWN, suspects, key=lambda test: _part(test, "check"))))


def describe_cost(test: TestRecord) -> str:
    """Write what one test and its check took: ``2.1 s; check 0.9 s (re-runs 0.4 s, search 0.3 s)``."""
    took = duration(_finite(test.duration_s))
    if not test.suspect_s:
        return f"{took}; check {duration(_finite(test.overhead_s))}"
    cost = _cost(test)
    return f"{took}; check {cost.check} (re-runs {cost.reruns}, search {cost.search})"


def duration(seconds: float) -> str:
    """Write a time in the unit that it has at least one of: ``21 µs``, ``4.3 ms``, ``2.5 s``, ``3 min 20 s``."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} \u00b5s" if seconds > 0 else "0 s"
    if seconds < 1:
        return f"{seconds * 1e3:.{1 if seconds < 0.01 else 0}f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def _cost(test: TestRecord) -> Cost:
    check, reruns, search = (duration(_part(test, name)) for name in ("check", "reruns", "search"))
    name = clean_text(test.nodeid, _ID_LIMIT)
    return Cost(name, test.verdict, duration(_finite(test.duration_s)), check, reruns, search)


def _part(test: TestRecord, name: str) -> float:
    return _finite(test.suspect_s.get(name, 0.0))


def _finite(seconds: float) -> float:
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0
