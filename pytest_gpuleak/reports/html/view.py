"""What the HTML report shows around its findings: the headline, figures, filters and facts."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.text import clean_text, count_of, format_bytes
from pytest_gpuleak.reports.html.chart import HOST, Drawing, Mark, build_charts, draw_chart, encode_chart
from pytest_gpuleak.reports.html.costs import describe_costs, duration, find_dearest
from pytest_gpuleak.reports.html.peaks import draw_peaks
from pytest_gpuleak.reports.html.rows import ID_LIMIT, STATES, Found, Row, build_rows, find_all
from pytest_gpuleak.reports.html.tree import HOLDERS_SHOWN, Culprit, build_tree, find_culprits
from pytest_gpuleak.reports.terminal.closing import describe_facts
from pytest_gpuleak.reports.wording import HOLDER_WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpuleak.model.records import RunReport, TestRecord

    _Listed = tuple[tuple[str, ...], dict[str, Any]]
    _Drawn = tuple[tuple[Drawing, ...], list[dict[str, Any]]]

_T = TypeVar("_T")
_Other = TypeVar("_Other")

MAX_TESTS = 200_000
"""Tests that the page lists and draws, the first of the run."""

_FILTERS = ("state", "kind", "device", "holder")
_REASONS_SHOWN = 20
_STALE_SHOWN = 500


def describe_run(report: RunReport) -> dict[str, Any]:
    """Arrange a run for the page: what the template takes, beside the report. A part that fails is named in `faults`."""
    faults: list[str] = []

    def part(name: str, make: Callable[[], _T], otherwise: _Other) -> _T | _Other:
        def leave_out(why: str) -> _T | _Other:
            faults.append(f"{name} could not be shown ({why})")
            return otherwise

        return isolated(make, leave_out)

    found: list[Found] = part("the findings", lambda: find_all(report), [])
    rows = build_rows(found)
    culprits: list[Culprit] = part("the holders", lambda: find_culprits(found), [])
    headline, mood = part("the headline", lambda: _headline(report, found), ("GPU memory leaks", "leaked"))
    reasons = Counter(test.why_unchecked for test in report.tests if test.why_unchecked and not test.rerun)
    tests = report.tests[:MAX_TESTS]
    workers, data = part("the list of tests", lambda: _list_tests(tests), ((), no_data()))
    drawings, data["charts"] = part("the chart", lambda: _draw(tests, workers, rows), ((), []))
    return {
        "headline": headline,
        "mood": mood,
        "faults": faults,
        "met": tuple(describe_facts(report)),
        "tiles": part("the totals", lambda: tuple(_tiles(report, found)), ()),
        "rows": tuple(rows),
        "rows_left": len(found) - len(rows),
        "tree": part("the tree of holders", lambda: tuple(build_tree(culprits[:HOLDERS_SHOWN])), ()),
        "culprits_left": max(0, len(culprits) - HOLDERS_SHOWN),
        "choices": part("the filters", lambda: _all_choices(rows), dict.fromkeys(_FILTERS, ())),
        "drawings": drawings,
        "peaks": part("the peaks", lambda: draw_peaks(report), ()),
        "workers": workers,
        "reasons": tuple(reasons.most_common(_REASONS_SHOWN)),
        "reasons_left": max(0, len(reasons) - _REASONS_SHOWN),
        "stale": report.stale[:_STALE_SHOWN],
        "stale_left": max(0, len(report.stale) - _STALE_SHOWN),
        "facts": tuple(
            (title, part(title.lower(), functools.partial(_facts, values), ()))
            for title, values in (
                ("Environment", report.environment),
                ("Policy", report.policy),
                ("Totals", report.summary),
            )
        ),
        "costs": part("the times", lambda: describe_costs(report.tests), ()),
        "dearest": part("the most expensive tests", lambda: find_dearest(report.tests), ()),
        "tests": len(report.tests),
        "tests_left": max(0, len(report.tests) - MAX_TESTS),
        "without_findings": sum(not test.findings for test in report.tests),
        "data": data,
    }


def _list_tests(tests: Sequence[TestRecord]) -> _Listed:
    workers = tuple(sorted({test.worker for test in tests}, key=lambda name: (len(name), name)))
    names = [clean_text(worker, ID_LIMIT) for worker in workers]
    return workers, {"tests": _encode_tests(tests, workers), "workers": names, "charts": []}


def no_data() -> dict[str, Any]:
    """Return the script's data where there are no tests to list."""
    return {"tests": {"files": [], "words": [], "rows": []}, "workers": [], "charts": []}


def _draw(tests: Sequence[TestRecord], workers: Sequence[str], rows: Sequence[Row]) -> _Drawn:
    if not workers:
        return (), []
    positions: dict[str, list[int]] = {worker: [] for worker in workers}
    for at, test in enumerate(tests):
        positions[test.worker].append(at)
    charts = build_charts(tests, workers, _marks([row for row in rows if row.found.order < len(tests)]))
    drawings = tuple(draw_chart(chart, positions) for chart in charts)
    return drawings, [encode_chart(chart, workers) for chart in charts]


def _all_choices(rows: Sequence[Row]) -> dict[str, tuple[tuple[str, str, int], ...]]:
    values = (
        (row.found.state for row in rows),
        (row.found.finding.kind for row in rows),
        (row.found.finding.device for row in rows),
        (row.found.holder_kind for row in rows),
    )
    return {
        name: _choices(some, HOLDER_WORDS if name == "holder" else {})
        for name, some in zip(_FILTERS, values, strict=True)
    }


def _marks(rows: Sequence[Row]) -> dict[str, list[Mark]]:
    """Return, by chart device, the tests to mark with their worst finding. CPU tensors belong to the host."""
    marks: dict[str, dict[int, Mark]] = {}
    for number, found, _, _ in rows:
        if not found.is_fixture and found.state in ("leaked", "known"):
            device = HOST if found.finding.device == "cpu" else found.finding.device
            marks.setdefault(device, {}).setdefault(found.order, Mark(found.order, number, found.state))
    return {device: sorted(found.values(), key=lambda mark: mark.position) for device, found in marks.items()}


def _headline(report: RunReport, found: Sequence[Found]) -> tuple[str, str]:
    counts = report.summary
    leaked, fixtures = _count(counts.get("leaked")), _count(counts.get("fixtures_leaked"))
    known = sum(one.state == "known" for one in found)
    parts = [count_of(leaked, "test")] if leaked or not fixtures else []
    parts += [count_of(fixtures, "fixture")] if fixtures else []
    total = sum(one.finding.bytes for one in found if one.state == "leaked")
    if leaked or fixtures:
        sentence = f"{' and '.join(parts)} leaked {format_bytes(total)}"
        mood = "leaked"
    else:
        sentence = "No test leaked"
        mood = "known" if known else "clean"
    if report.incomplete is not None:
        sentence, mood = f"Incomplete run: {sentence[0].lower()}{sentence[1:]} so far", "leaked"
    if known:
        sentence += f"; {count_of(known, 'known leak')} passed"
    if report.stale:
        stale = len(report.stale)
        sentence += f"; {stale} baseline {'entry is' if stale == 1 else 'entries are'} stale"
    return sentence, mood


def _tiles(report: RunReport, found: Sequence[Found]) -> Iterable[tuple[str, str, str]]:
    counts = report.summary
    states = Counter(one.state for one in found)
    yield f"{_count(counts.get('leaked')):,}", "leaked", "leaked" if counts.get("leaked") else ""
    if counts.get("fixtures_leaked"):
        yield f"{_count(counts['fixtures_leaked']):,}", "fixtures leaked", "leaked"
    if states["known"]:
        yield f"{states['known']:,}", "known", "known"
    for name in ("noted", "allowed", "unchecked"):
        if counts.get(name):
            yield f"{_count(counts[name]):,}", name, ""
    yield f"{_count(counts.get('clean')):,}", "clean", ""
    if counts.get("rerun"):
        yield f"{_count(counts['rerun']):,}", "rerun", ""
    yield f"{sum(not test.rerun for test in report.tests):,}", "tests", ""
    seconds = sum(test.duration_s for test in report.tests)
    if math.isfinite(seconds):
        yield duration(seconds), "in tests", ""
    cost = counts.get("overhead_per_test_us")
    if isinstance(cost, (int, float)) and math.isfinite(cost):
        yield duration(cost / 1e6), "check per clean test", ""
    suspects = counts.get("suspects") or {}
    if suspects.get("tests"):
        yield duration(suspects["check_s"]), f"check of {count_of(suspects['tests'], 'suspect')}", ""


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _choices(values: Iterable[str], words: Mapping[str, str]) -> tuple[tuple[str, str, int], ...]:
    counts = Counter(values)
    return tuple((value, words.get(value, value), counts[value]) for value in sorted(counts, key=_state_rank))


def _state_rank(value: str) -> tuple[int, str]:
    return (STATES.index(value) if value in STATES else len(STATES), value)


def _facts(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    facts = []
    for name, value in values.items():
        if value is None or value in ([], {}):
            text = "none" if value is not None else "not set"
        elif isinstance(value, str):
            text = value
        elif isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
            text = ", ".join(value)
        elif isinstance(value, float):
            text = f"{value:.6g}"
        else:
            text = json.dumps(value, default=str)
        facts.append((name.replace("_", " "), text))
    return tuple(facts)


def _encode_tests(tests: Sequence[TestRecord], workers: Sequence[str]) -> dict[str, Any]:
    files: dict[str, int] = {}
    words: dict[str, int] = {}
    place = {worker: index for index, worker in enumerate(workers)}
    rows: list[list[Any]] = []
    for test in tests:
        file, separator, rest = clean_text(test.nodeid, ID_LIMIT).partition("::")
        name = rest if separator else ""
        numbers = [words.setdefault(word, len(words)) for word in (test.verdict, test.outcome)]
        times = [
            round(seconds * scale) if math.isfinite(seconds) else None
            for seconds, scale in ((test.duration_s, 1000), (test.overhead_s, 1_000_000))
        ]
        row: list[Any] = [files.setdefault(file, len(files)), name, *numbers, place[test.worker], *times]
        if test.why_unchecked:
            row.append(words.setdefault(clean_text(test.why_unchecked, ID_LIMIT), len(words)))
        rows.append(row)
    return {"files": list(files), "words": list(words), "rows": rows}
