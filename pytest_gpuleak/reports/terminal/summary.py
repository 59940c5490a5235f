"""What every run says at its end: one line, and what the tests took. The rest of the terminal report is `findings`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.text import clean_text, count_of, format_bytes, format_signed, shorten_middle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuleak.model.records import RunReport, TestRecord

ID_LIMIT = 300
"""Characters of a test id or a file name."""

TEXT_LIMIT = 500
"""Characters of a chain, a source line, a reason or a hint."""

MIN_WIDTH = 60
"""Columns that lines may take however narrow the terminal is: cut shorter, they say nothing."""

INDENT = "  "
"""What lines that belong to another one begin with."""


def render_summary(counts: Mapping[str, Any]) -> str:
    """Write the run's one line: ``gpu-leak: 2 leaked, 1 noted, 3 unchecked, 97 clean; 21 us a test``.

    Args:
        counts: a report's `summary`. Read are, each 0 or left out where missing: leaked, fixtures_leaked, noted,
            allowed, unchecked, clean, known, stale and overhead_per_test_us.
    """
    parts = [f"{counts.get('leaked', 0)} leaked"]
    if counts.get("fixtures_leaked"):
        parts.append(f"{count_of(counts['fixtures_leaked'], 'fixture')} leaked")
    parts += [f"{counts[name]} {name}" for name in ("noted", "allowed", "unchecked") if counts.get(name)]
    parts.append(f"{counts.get('clean', 0)} clean")
    listed = [f"{counts[name]} {name}" for name in ("known", "stale") if counts.get(name)]
    if listed:
        parts.append(f"baseline: {', '.join(listed)}")
    cost = counts.get("overhead_per_test_us")
    return f"gpu-leak: {', '.join(parts)}{'' if cost is None else _cost(cost)}"


def render_faults(tests: Iterable[TestRecord], outside: Sequence[str]) -> str | None:
    """Write in one line where the check itself, or a user's hook, has failed, and how first; None where it did not.

    Args:
        tests: the records of the run.
        outside: what failed outside of tests.
    """
    faulty = [test for test in tests if test.faults]
    if not (faulty or outside):
        return None
    unchecked = sum(test.verdict == "unchecked" for test in faulty)
    where = f"in {count_of(len(faulty), 'test')}" if faulty else "outside of the tests"
    if unchecked:
        where += f" ({unchecked} unchecked)"
    if faulty and outside:
        where += ", and outside of the tests"
    first = clean_text(faulty[0].faults[0] if faulty else outside[0], TEXT_LIMIT)
    return f"gpu-leak: the check itself failed {where}: {first}"


def render_usage(report: RunReport, *, width: int) -> list[str]:
    """Write what the tests took: the heaviest, then what the session added up to; none where nothing was measured.

    Reads `summary["memory"]`.
    """
    usage = report.summary.get("memory") or {}
    lines: list[str] = []
    for entry in usage.get("heaviest", ()):
        size = f"{format_bytes(entry['bytes']):>10} {entry['what']} on {clean_text(entry['device'], ID_LIMIT)}"
        lines.append(f"{INDENT}{size}  {clean_text(entry['nodeid'], ID_LIMIT)}")
    if lines:
        lines.insert(0, "gpu-leak: the heaviest tests, and what the session added")
    for device, counters in usage.get("drift", {}).items() if lines else ():
        parts = [f"{clean_text(name, ID_LIMIT)} {format_signed(size)}" for name, size in counters.items()]
        peak = usage.get("peaks", {}).get(device)
        highest = "" if peak is None else f"; peak {format_bytes(peak)}"
        lines.append(f"{INDENT}session, {clean_text(device, ID_LIMIT)}: {', '.join(parts)}{highest}")
    return [
        line if len(line) <= max(width, MIN_WIDTH) else shorten_middle(line, max(width, MIN_WIDTH)) for line in lines
    ]


def _cost(microseconds: float) -> str:
    if not math.isfinite(microseconds):
        return ""
    return f"; {microseconds:.0f} us a test" if microseconds < 1000 else f"; {microseconds / 1000:.1f} ms a test"
