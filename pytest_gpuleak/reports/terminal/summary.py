"""Lines at the end of every run: the summary, faults, and the heaviest tests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.text import clean_text, count_of, format_bytes, format_signed, shorten_middle
from pytest_gpuleak.reports.terminal.lines import ID_LIMIT, INDENT, MIN_WIDTH, TEXT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuleak.model.records import RunReport, TestRecord
    from pytest_gpuleak.model.summary import CleanUp

_FIXTURES_SHOWN = 5


def render_summary(counts: Mapping[str, Any]) -> str:
    """Write the summary line: ``gpu-leak: 2 leaked, 97 clean; 21 us a clean test; 3 suspects took 1.4 s``, with its parts."""
    parts = [f"{counts.get('leaked', 0)} leaked"]
    if counts.get("fixtures_leaked"):
        parts.append(f"{count_of(counts['fixtures_leaked'], 'fixture')} leaked{_names(counts.get('leaking_fixtures'))}")
    parts += [f"{counts[name]} {name}" for name in ("noted", "allowed", "unchecked") if counts.get(name)]
    parts.append(f"{counts.get('clean', 0)} clean")
    if counts.get("rerun"):
        parts.append(f"{counts['rerun']} rerun")
    listed = [f"{counts[name]} {name}" for name in ("known", "stale") if counts.get(name)]
    if listed:
        parts.append(f"baseline: {', '.join(listed)}")
    if "would_fail" in counts:
        parts.append(f"{count_of(counts['would_fail'], 'test')} would fail without --gpu-leak-warn")
    cost = _cost(counts.get("overhead_per_test_us")) + _cost_of_suspects(counts.get("suspects") or {})
    return f"gpu-leak: {', '.join(parts)}{cost}"


def render_clean_up(counts: Mapping[str, Any]) -> list[str]:
    """Write in one line what the suite's own clean-up took, where it is worth telling: ``summary["cleanup"]``."""
    entries, run_s = _clean_up_of(counts), counts.get("run_s") or 0.0
    if not entries:
        return []
    from pytest_gpuleak.model.summary import is_worth_telling, total_s

    if not is_worth_telling(entries, run_s):
        return []
    owners: dict[tuple[str, str | None, int | None], list[CleanUp]] = {}
    for one in entries:
        owners.setdefault((one.by, one.file, one.line), []).append(one)
    first, *others = sorted(owners.values(), key=lambda calls: -total_s(calls))
    does = " and ".join(f"{_DOES[one.what]} {count_of(one.count, 'time')}" for one in first)
    more = f", {count_of(len(others), 'other')} {_seconds(sum(map(total_s, others)))} s" if others else ""
    took = f"{_seconds(total_s(first))} s of {_seconds(run_s)}{more}"
    return [f"gpu-leak: {_owner(first[0])} {does}: {took}; --gpu-leak finds the tests that need it"]


def render_clean_up_calls(counts: Mapping[str, Any], shown: int, *, width: int) -> list[str]:
    """Write a line for each caller of clean-up, of ``summary["cleanup"]``, those that took longest first."""
    lines = [
        f"{INDENT}{one.seconds:>8.1f} s  {one.what}, {count_of(one.count, 'time')}, by {_owner(one)}"
        for one in _clean_up_of(counts)[:shown]
    ]
    return _table(f"what the suite's own clean-up took, of {_seconds(counts.get('run_s') or 0.0)} s", lines, width)


_DOES = {"gc.collect": "collects the heap", "empty_cache": "empties the device's cache"}


def _clean_up_of(counts: Mapping[str, Any]) -> list[CleanUp]:
    if not counts.get("cleanup"):
        return []
    from pytest_gpuleak.model.summary import CleanUp  # most suites leave that to the interpreter

    return [CleanUp(**entry) for entry in counts["cleanup"]]


def _owner(one: CleanUp) -> str:
    place = "" if one.file is None else f" ({clean_text(one.file, ID_LIMIT)}:{one.line})"
    return f"{clean_text(one.by, ID_LIMIT)}{place}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}"


def render_lost_devices(counts: Mapping[str, Any]) -> list[str]:
    """Write a line for each device that stopped answering, of ``summary["lost_devices"]``."""
    lines: list[str] = []
    entries = counts.get("lost_devices") or ()
    if entries:
        from pytest_gpuleak.model.devices import LostDevice  # most runs lose none
    for lost in (LostDevice(**entry) for entry in entries):
        last = lost.last_answered
        before = (
            "no earlier test had used it"
            if last is None
            else f"last test after which it answered: {clean_text(last, ID_LIMIT)}"
        )
        of_worker = "" if lost.worker == "main" else f" of {clean_text(lost.worker, ID_LIMIT)}"
        reason = clean_text(lost.reason, 2 * ID_LIMIT)
        lines.append(f"gpu-leak: {reason}; {before}; later tests{of_worker} are not checked")
    return lines


def render_faults(tests: Iterable[TestRecord], outside: Sequence[str]) -> str | None:
    """Write in one line where the check itself or a user's hook failed first; None where neither did."""
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
    """Write the heaviest tests and the drift of ``summary["memory"]``; nothing where no counter was read."""
    usage = report.summary.get("memory") or {}
    lines: list[str] = []
    for entry in usage.get("heaviest", ()):
        size = f"{format_bytes(entry['bytes']):>10} {entry['what']} on {clean_text(entry['device'], ID_LIMIT)}"
        lines.append(f"{INDENT}{size}  {clean_text(entry['nodeid'], ID_LIMIT)}")
    for device, counters in usage.get("drift", {}).items() if lines else ():
        parts = [f"{clean_text(name, ID_LIMIT)} {format_signed(size)}" for name, size in counters.items()]
        peak = usage.get("peaks", {}).get(device)
        highest = "" if peak is None else f"; peak {format_bytes(peak)}"
        lines.append(f"{INDENT}session, {clean_text(device, ID_LIMIT)}: {', '.join(parts)}{highest}")
    return _table("the heaviest tests, and what the session added", lines, width)


def render_dearest(report: RunReport, *, width: int) -> list[str]:
    """Write the suspects whose check took longest, of ``summary["dearest"]``."""
    lines = [
        f"{INDENT}{entry['check_s']:>8.1f} s  {_parts(entry)}  {clean_text(entry['nodeid'], ID_LIMIT)}"
        for entry in report.summary.get("dearest") or ()
    ]
    return _table("the suspects that took longest to check", lines, width)


def _table(head: str, lines: Sequence[str], width: int) -> list[str]:
    """Write lines below their head, none wider than the terminal; nothing where there are none."""
    return [shorten_middle(line, max(width, MIN_WIDTH)) for line in (f"gpu-leak: {head}", *lines)] if lines else []


def _names(names: object) -> str:
    if not isinstance(names, (list, tuple)) or not names:
        return ""
    shown = [f"'{clean_text(str(name), ID_LIMIT)}'" for name in names[:_FIXTURES_SHOWN]]
    if len(names) > len(shown):
        shown.append(f"{len(names) - len(shown)} more")
    return f" ({', '.join(shown)})"


def _cost(microseconds: float | None) -> str:
    if microseconds is None or not math.isfinite(microseconds):
        return ""
    figure = f"{microseconds:.0f} us" if microseconds < 1000 else f"{microseconds / 1000:.1f} ms"
    return f"; {figure} a clean test"


def _cost_of_suspects(suspects: Mapping[str, Any]) -> str:
    if not suspects.get("tests"):
        return ""
    return f"; {count_of(suspects['tests'], 'suspect')} took {suspects['check_s']:.1f} s ({_parts(suspects)})"


def _parts(seconds: Mapping[str, float]) -> str:
    return f"re-runs {seconds['reruns_s']:.1f}, search {seconds['search_s']:.1f}"
