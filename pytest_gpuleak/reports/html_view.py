"""What the HTML report shows around its findings: its sentence, figures, filters and facts, arranged and not judged."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.reports.html_chart import HOST, Drawing, Mark, build_charts, draw_chart, encode_chart
from pytest_gpuleak.reports.html_rows import (
    ID_LIMIT,
    STATES,
    Culprit,
    Row,
    build_rows,
    group_culprits,
)
from pytest_gpuleak.reports.text import clean_text, count_of, format_bytes
from pytest_gpuleak.reports.words import HOLDER_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuleak.findings import KnownLeak
    from pytest_gpuleak.records import RunReport, TestRecord

_CULPRITS_SHOWN = 10
_REASONS_SHOWN = 20
_STALE_SHOWN = 500


@dataclasses.dataclass(frozen=True)
class View:
    """All that the template needs beside the report itself."""

    title: str
    headline: str
    mood: str
    tiles: tuple[tuple[str, str, str], ...]
    rows: tuple[Row, ...]
    culprits: tuple[Culprit, ...]
    culprits_left: int
    choices: Mapping[str, tuple[tuple[str, str, int], ...]]
    drawings: tuple[Drawing, ...]
    workers: tuple[str, ...]
    reasons: tuple[tuple[str, int], ...]
    reasons_left: int
    stale: tuple[KnownLeak, ...]
    stale_left: int
    facts: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    tests: int
    without_findings: int
    data: dict[str, Any]


def describe_run(report: RunReport) -> View:
    """Arrange a run for the page: what fails first, within that the largest."""
    rows = build_rows(report)
    by_name = sorted({test.worker for test in report.tests}, key=lambda name: (len(name), name))
    positions: dict[str, list[int]] = {worker: [] for worker in by_name}
    for at, test in enumerate(report.tests):
        positions[test.worker].append(at)
    charts = build_charts(report.tests, by_name, _marks(rows))
    culprits = group_culprits(rows)
    headline, mood = _headline(report, rows)
    reasons = Counter(test.why_unchecked for test in report.tests if test.why_unchecked)
    return View(
        title=headline,
        headline=headline,
        mood=mood,
        tiles=tuple(_tiles(report, rows)),
        rows=tuple(rows),
        culprits=tuple(culprits[:_CULPRITS_SHOWN]),
        culprits_left=max(0, len(culprits) - _CULPRITS_SHOWN),
        choices={
            "state": _choices((row.state for row in rows), {}),
            "kind": _choices((row.finding.kind for row in rows), {}),
            "device": _choices((row.finding.device for row in rows), {}),
            "holder": _choices((row.holder_kind for row in rows), HOLDER_WORDS),
        },
        drawings=tuple(draw_chart(chart, positions) for chart in charts),
        workers=tuple(by_name),
        reasons=tuple(reasons.most_common(_REASONS_SHOWN)),
        reasons_left=max(0, len(reasons) - _REASONS_SHOWN),
        stale=report.stale[:_STALE_SHOWN],
        stale_left=max(0, len(report.stale) - _STALE_SHOWN),
        facts=(
            ("Environment", tuple(_facts(report.environment))),
            ("Policy", tuple(_facts(report.policy))),
            ("Totals", tuple(_facts(report.summary))),
        ),
        tests=len(report.tests),
        without_findings=sum(not test.findings for test in report.tests),
        data={
            "tests": _encode_tests(report.tests, by_name),
            "workers": [clean_text(worker, ID_LIMIT) for worker in by_name],
            "charts": [encode_chart(chart, by_name) for chart in charts],
        },
    )


def _marks(rows: Sequence[Row]) -> dict[str, list[Mark]]:
    """By chart device, the tests to mark there, each with the worst of its findings; tensors on the CPU are the host's."""
    marks: dict[str, dict[int, Mark]] = {}
    for row in rows:
        if not row.is_fixture and row.state in ("leaked", "known"):
            device = HOST if row.finding.device == "cpu" else row.finding.device
            marks.setdefault(device, {}).setdefault(row.order, Mark(row.order, row.number, row.state))
    return {device: sorted(found.values(), key=lambda mark: mark.position) for device, found in marks.items()}


def _headline(report: RunReport, rows: Sequence[Row]) -> tuple[str, str]:
    """Say the run's verdict in one sentence, and name the mood that colours it."""
    counts = report.summary
    leaked, fixtures = _count(counts.get("leaked")), _count(counts.get("fixtures_leaked"))
    known = sum(row.state == "known" for row in rows)
    parts = [count_of(leaked, "test")] if leaked or not fixtures else []
    parts += [count_of(fixtures, "fixture")] if fixtures else []
    total = sum(row.finding.bytes for row in rows if row.state == "leaked")
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


def _tiles(report: RunReport, rows: Sequence[Row]) -> Iterable[tuple[str, str, str]]:
    """Pair the figures of the head with their labels, and with the state that colours them where it is not 0."""
    counts = report.summary
    states = Counter(row.state for row in rows)
    yield f"{_count(counts.get('leaked')):,}", "leaked", "leaked" if counts.get("leaked") else ""
    if counts.get("fixtures_leaked"):
        yield f"{_count(counts['fixtures_leaked']):,}", "fixtures leaked", "leaked"
    if states["known"]:
        yield f"{states['known']:,}", "known", "known"
    for name in ("noted", "allowed", "unchecked"):
        if counts.get(name):
            yield f"{_count(counts[name]):,}", name, ""
    yield f"{_count(counts.get('clean')):,}", "clean", ""
    yield f"{len(report.tests):,}", "tests", ""
    seconds = sum(test.duration_s for test in report.tests)
    if math.isfinite(seconds):
        yield _duration(seconds), "in tests", ""
    cost = counts.get("overhead_per_test_us")
    if isinstance(cost, (int, float)) and math.isfinite(cost):
        yield (f"{cost:.0f} \u00b5s" if cost < 1000 else f"{cost / 1000:.1f} ms"), "check per clean test", ""


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _choices(values: Iterable[str], words: Mapping[str, str]) -> tuple[tuple[str, str, int], ...]:
    """List what a filter can be set to: the value, its words, and how many rows have it."""
    counts = Counter(values)
    return tuple((value, words.get(value, value), counts[value]) for value in sorted(counts, key=_state_rank))


def _state_rank(value: str) -> tuple[int, str]:
    return (STATES.index(value) if value in STATES else len(STATES), value)


def _facts(values: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
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
        yield name.replace("_", " "), text


def _encode_tests(tests: Sequence[TestRecord], workers: Sequence[str]) -> dict[str, Any]:
    """Write all tests as columns for the script, a file's name and each repeated word once."""
    files: dict[str, int] = {}
    words: dict[str, int] = {}
    place = {worker: index for index, worker in enumerate(workers)}
    rows: list[list[Any]] = []
    for test in tests:
        file, separator, rest = clean_text(test.nodeid, ID_LIMIT).partition("::")
        name = rest if separator else ""
        numbers = [words.setdefault(word, len(words)) for word in (test.verdict, test.outcome)]
        milliseconds = round(test.duration_s * 1000) if math.isfinite(test.duration_s) else None
        row: list[Any] = [files.setdefault(file, len(files)), name, *numbers, place[test.worker], milliseconds]
        if test.why_unchecked:
            row.append(words.setdefault(clean_text(test.why_unchecked, ID_LIMIT), len(words)))
        rows.append(row)
    return {"files": list(files), "words": list(words), "rows": rows}
