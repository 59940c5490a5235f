"""Counts over a run, from its records."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuleak.model.findings import FixtureRecord
    from pytest_gpuleak.model.records import TestRecord

VERDICTS = ("clean", "leaked", "noted", "allowed", "unchecked")
"""The verdicts, in the order of a summary."""


def summarise(tests: Iterable[TestRecord], fixtures: Sequence[FixtureRecord]) -> dict[str, Any]:
    """Count verdicts and findings, and add up seconds: the keys of a report's `summary` that records alone determine.

    `tests` is read once, so it may be a generator.
    """
    verdicts: Counter[str] = Counter()
    findings = sum(len(record.findings) for record in fixtures)
    overhead = duration = 0.0
    clean: list[float] = []
    faulty = 0
    for record in tests:
        verdicts[record.verdict] += 1
        findings += len(record.findings)
        overhead += record.overhead_s
        duration += record.duration_s
        faulty += bool(record.faults)
        if not record.findings:
            clean.append(record.overhead_s)
    ordered = sorted(clean)
    return {
        "tests": sum(verdicts.values()),
        **{verdict: verdicts[verdict] for verdict in VERDICTS},
        "fixtures_leaked": sum(any(found.failed for found in record.findings) for record in fixtures),
        "findings": findings,
        "faults": faulty,
        "overhead_s": overhead,
        # Median over clean tests: a suspect's re-run would distort the mean.
        "overhead_per_test_us": ordered[len(ordered) // 2] * 1e6 if ordered else None,
        "duration_s": duration,
    }
