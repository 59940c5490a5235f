"""Figures of peaks: memory over the steps of a test as a stacked area by use, with a table that says the same."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pytest_gpuleak.model.text import clean_text, format_bytes
from pytest_gpuleak.reports.html.rows import ID_LIMIT, write_place
from pytest_gpuleak.reports.terminal.peak import render_peak, title_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_gpuleak.model.peak_parts import Peak, PeakStep
    from pytest_gpuleak.model.records import RunReport

    _Scale = Callable[[int], float]

MAX_FIGURES = 100
"""Peaks that are drawn, the highest first."""

WIDTH, HEIGHT = 960, 200

_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 14, 22, 24
_ORDER = ("parameter", "buffer", "optimizer state", "gradient", "activation", "input", "held", "temporary")
_GRID = 4

_Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Area:
    """What one use takes, as a polygon on top of those before it; `index` chooses its colour."""

    name: str
    index: int
    points: tuple[_Point, ...]
    most: str


@dataclasses.dataclass(frozen=True)
class Figure:
    """A peak as it is drawn, `mark` the point where it is; `table` has a row a step: its cells, and whether it is the peak."""

    name: str
    title: str
    lines: tuple[str, ...]
    areas: tuple[Area, ...]
    mark: _Point | None
    rows: tuple[tuple[float, str], ...]
    columns: tuple[str, ...]
    table: tuple[tuple[tuple[str, ...], bool], ...]
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM
    width: int = WIDTH
    height: int = HEIGHT


def draw_peaks(report: RunReport) -> tuple[Figure, ...]:
    """Draw the peaks that the report has, the highest first: of the heaviest tests, and of those over their budgets."""
    found = sorted(_peaks_of(report), key=lambda one: (one[1].device == "cpu", -one[1].bytes, one[0]))
    return tuple(_figure(nodeid, peak) for nodeid, peak in found[:MAX_FIGURES])


def _peaks_of(report: RunReport) -> Iterator[tuple[str, Peak]]:
    for test in report.tests:
        if test.peak is not None:
            yield test.nodeid, test.peak
        for found in test.findings:
            if (
                found.peak is not None and found.peak != test.peak
            ):  # the peak of a test that has grown is the finding's too
                yield test.nodeid, found.peak


def _figure(nodeid: str, peak: Peak) -> Figure:
    steps = peak.steps
    names = sorted({name for step in steps for name in step.alive}, key=_rank)
    totals = [sum(step.alive.values()) for step in steps]
    highest, last = max(totals, default=0) or 1, (steps[-1].at if steps else 1) or 1

    def x(at: int) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * at / last, 1)

    def y(size: int) -> float:
        return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * size / highest, 1)

    top = totals.index(max(totals)) if totals else None
    return Figure(
        name=clean_text(nodeid, ID_LIMIT),
        title=title_of(peak),
        lines=tuple(line.removeprefix("  ") for line in render_peak(peak)),
        areas=tuple(_areas(steps, names, x, y)),
        mark=None if top is None else (x(steps[top].at), y(totals[top])),
        rows=tuple((y(highest * part // _GRID), format_bytes(highest * part // _GRID)) for part in range(_GRID + 1)),
        columns=("Step", "Phase", "Line", "In all", *names),
        table=tuple((_cells(step, names), index == top) for index, step in enumerate(steps)),
    )


def _rank(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def _areas(steps: Sequence[PeakStep], names: Iterable[str], x: _Scale, y: _Scale) -> Iterator[Area]:
    """Draw each use on top of those before it: along its upper edge, and back along its lower."""
    below = [0] * len(steps)
    for name in names:
        above = [base + step.alive.get(name, 0) for base, step in zip(below, steps, strict=True)]
        upper = [(x(step.at), y(size)) for step, size in zip(steps, above, strict=True)]
        lower = [(x(step.at), y(size)) for step, size in zip(steps, below, strict=True)]
        most = format_bytes(max(step.alive.get(name, 0) for step in steps))
        yield Area(clean_text(name, 40), _rank(name)[0], (*upper, *reversed(lower)), most)
        below = above


def _cells(step: PeakStep, names: Iterable[str]) -> tuple[str, ...]:
    line = "" if step.file is None else write_place(step.file, step.line)
    sizes = (format_bytes(step.alive[name]) if step.alive.get(name) else "" for name in names)
    return (f"{step.at:,}", step.phase, line, format_bytes(sum(step.alive.values())), *sizes)
