"""Counts over a run, from its records."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuleak.model.findings import FixtureRecord
    from pytest_gpuleak.model.records import TestRecord

SUSPECT_PARTS = ("check", "reruns", "search")

MAX_NAMES = 20
"""Leaking fixtures whose names stand in a summary; the records have all."""

VERDICTS = ("clean", "leaked", "noted", "allowed", "unchecked")


class Totals:
    """Counts of a summary, updated test by test."""

    def __init__(self) -> None:
        self._verdicts = dict.fromkeys(VERDICTS, 0)
        self._rerun = 0
        self._findings = 0
        self._fixtures = (0, 0)
        self._overhead_s = self._duration_s = 0.0

    def copy(self) -> Totals:
        """Return an independent copy."""
        other = Totals()
        vars(other).update(vars(self), _verdicts=dict(self._verdicts))
        return other

    def add(self, verdict: str, findings: int, overhead_s: float, duration_s: float, *, rerun: bool = False) -> None:
        """Count a test, or an attempt that was run again (`rerun`). Raises KeyError for an unknown verdict."""
        self._verdicts[verdict] += not rerun
        self._rerun += rerun
        self._findings += findings
        self._overhead_s += overhead_s
        self._duration_s += duration_s

    def set_fixtures(self, leaked: int, findings: int) -> None:
        """Set the number of leaking fixtures, and that of all fixtures' findings."""
        self._fixtures = (leaked, findings)

    def summary(self) -> dict[str, Any]:
        """Return the keys of a report's ``summary`` that need no list of all tests."""
        return {
            "tests": sum(self._verdicts.values()),
            **self._verdicts,
            "rerun": self._rerun,
            "fixtures_leaked": self._fixtures[0],
            "findings": self._findings + self._fixtures[1],
            "overhead_s": self._overhead_s,
            "duration_s": self._duration_s,
        }


def summarise(tests: Iterable[TestRecord], fixtures: Sequence[FixtureRecord]) -> dict[str, Any]:
    """Return the keys of a `summary` that records alone determine. `tests` is read once, so it may be a generator."""
    totals = Totals()
    totals.set_fixtures(
        sum(any(found.failed for found in record.findings) for record in fixtures),
        sum(len(record.findings) for record in fixtures),
    )
    clean: list[float] = []
    suspects: list[dict[str, float]] = []
    faulty = 0
    for record in tests:
        totals.add(record.verdict, len(record.findings), record.overhead_s, record.duration_s, rerun=record.rerun)
        faulty += bool(record.faults)
        if record.suspect_s:
            suspects.append(record.suspect_s)
        elif not record.findings:
            clean.append(record.overhead_s)
    ordered = sorted(clean)
    names = (record.name for record in fixtures if any(found.failed for found in record.findings))
    return {
        **totals.summary(),
        "leaking_fixtures": list(dict.fromkeys(names))[:MAX_NAMES],
        "faults": faulty,
        # A median: the first test pays for what is loaded once, and some pay for a wider fixture's check.
        "overhead_per_test_us": ordered[len(ordered) // 2] * 1e6 if ordered else None,
        "suspects": {"tests": len(suspects), **{f"{part}_s": _sum(suspects, part) for part in SUSPECT_PARTS}},
    }


def find_dearest(tests: Iterable[TestRecord], count: int) -> list[dict[str, Any]]:
    """Return the suspects whose check took longest: nodeid, and the seconds of ``TestRecord.suspect_s``."""
    suspects = [test for test in tests if test.suspect_s]
    suspects.sort(key=lambda test: (-_sum([test.suspect_s], "check"), test.nodeid))
    return [
        {"nodeid": test.nodeid, **{f"{part}_s": _sum([test.suspect_s], part) for part in SUSPECT_PARTS}}
        for test in suspects[:count]
    ]


def _sum(suspects: Sequence[Mapping[str, float]], part: str) -> float:
    return sum(seconds for one in suspects if math.isfinite(seconds := one.get(part, 0.0)))
