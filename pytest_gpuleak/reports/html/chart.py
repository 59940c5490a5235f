"""Charts of memory over the run: one a device with one line a worker, as SVG and as data for the script."""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.model.text import clean_text, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuleak.model.records import TestRecord

HOST = "host"
"""Key of the process's memory in the records, beside the devices."""

WIDTH, HEIGHT = 960, 220

_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 14, 12, 24
_BUCKETS = 300  # of the horizontal axis; each draws its lowest and highest value
_MARKS_DRAWN = 400
_FIRST_METRICS = ("allocated", "heap", "reserved", "rss", "peak")
_KIB = 1024


@dataclasses.dataclass(frozen=True)
class Mark:
    """A leaking test on a chart: its position in the run, its finding's row number, and its state."""

    position: int
    row: int
    state: str


@dataclasses.dataclass(frozen=True)
class Chart:
    """The memory of one device over the run: by metric and worker, bytes after each of the worker's tests."""

    device: str
    metrics: tuple[str, ...]
    values: Mapping[str, Mapping[str, Sequence[int | None]]]
    marks: tuple[Mark, ...]


@dataclasses.dataclass(frozen=True)
class Line:
    """One worker's line of an SVG: the worker, its index, and the points."""

    worker: str
    index: int
    points: tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Geometry of an SVG."""

    device: str
    metric: str
    summary: str
    lines: tuple[Line, ...]
    marks: tuple[tuple[float, float, Mark], ...]
    rows: tuple[tuple[float, str], ...]
    columns: tuple[tuple[float, str], ...]
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    bottom: int = HEIGHT - _BOTTOM
    width: int = WIDTH
    height: int = HEIGHT


def build_charts(
    tests: Sequence[TestRecord], workers: Sequence[str], marks: Mapping[str, Sequence[Mark]]
) -> list[Chart]:
    """Build a chart for each device that any test has counters of: devices first, then the host."""
    metrics: dict[str, dict[str, None]] = {}
    for test in tests:
        for device, counters in test.memory.items():
            found = metrics.setdefault(device, {})
            for name in counters:
                if name == "peak" or name.endswith("_after"):
                    found.setdefault(name.removesuffix("_after"))
    charts: list[Chart] = []
    for device in sorted(metrics, key=lambda name: (name == HOST, name)):
        if not metrics[device]:
            continue
        names = sorted(metrics[device], key=_rank)
        values: dict[str, dict[str, list[int | None]]] = {name: {worker: [] for worker in workers} for name in names}
        for test in tests:
            counters = test.memory.get(device, {})
            for name in names:
                size = counters.get(name if name == "peak" else f"{name}_after")
                values[name][test.worker].append(size if isinstance(size, int) else None)
        charts.append(Chart(device, tuple(names), values, tuple(marks.get(device, ()))))
    return charts


def _rank(metric: str) -> tuple[int, str]:
    return (_FIRST_METRICS.index(metric) if metric in _FIRST_METRICS else len(_FIRST_METRICS), metric)


def encode_chart(chart: Chart, workers: Sequence[str]) -> dict[str, Any]:
    """Encode a chart as plain values for the script, sizes in KiB: finer than a pixel and half as long as bytes."""
    return {
        "device": clean_text(chart.device, 100),
        "metrics": [clean_text(metric, 100) for metric in chart.metrics],
        "values": [
            [
                [None if size is None else size // _KIB for size in chart.values[metric][worker]]
                if any(size is not None for size in chart.values[metric][worker])
                else None
                for worker in workers
            ]
            for metric in chart.metrics
        ],
        "marks": [[mark.position, mark.row, mark.state] for mark in chart.marks],
    }


def draw_chart(chart: Chart, positions: Mapping[str, Sequence[int]]) -> Drawing:
    """Lay out a chart's first metric as an SVG. `positions` are those of each worker's tests in the run, from 0."""
    metric = chart.metrics[0]
    series = {
        worker: [(at, size) for at, size in zip(positions[worker], sizes, strict=True) if size is not None]
        for worker, sizes in chart.values[metric].items()
    }
    every = [size for points in series.values() for _, size in points]
    count = max(1, max((len(places) and places[-1] for places in positions.values()), default=0))
    low, high, step = _scale(min(every, default=0), max(every, default=0))

    def x(position: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * position / count, 1)

    def y(size: float) -> float:
        return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * ((size - low) / (high - low)), 1)

    where = {at: size for points in series.values() for at, size in points}
    marks = [(x(mark.position), y(where[mark.position]), mark) for mark in chart.marks if mark.position in where]
    lines = tuple(
        Line(worker, index, tuple((x(at), y(size)) for at, size in _thin(points)))
        for index, (worker, points) in enumerate(series.items())
        if points
    )
    rows = tuple((y(size), _write_tick(size, step, high)) for size in range(low, high + 1, step))
    columns = tuple((x(at), f"{at + 1:,}") for at in range(0, count + 1, _nice(count / 8)))
    return Drawing(chart.device, metric, _summarise(metric, series), lines, tuple(_spread(marks)), rows, columns)


def _summarise(metric: str, series: Mapping[str, Sequence[tuple[int, int]]]) -> str:
    lines = [points for points in series.values() if points]
    if not lines:
        return f"{metric}: nothing was read"
    most = f"at most {format_bytes(max(size for points in lines for _, size in points))}"
    if len(lines) > 1:
        return f"{metric} after each test of {len(lines)} workers, {most}"
    return f"{metric} after each test, from {format_bytes(lines[0][0][1])} to {format_bytes(lines[0][-1][1])}, {most}"


def _spread(marks: list[tuple[float, float, Mark]]) -> Iterable[tuple[float, float, Mark]]:
    """Keep the first of marks that would cover each other."""
    if len(marks) <= _MARKS_DRAWN:
        return marks
    return {round(at * _MARKS_DRAWN / WIDTH): (at, size, mark) for at, size, mark in reversed(marks)}.values()


def _thin(points: Sequence[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Keep the lowest and highest point of each bucket, as a line of pixels would show."""
    length = math.ceil(len(points) / _BUCKETS)
    if length <= 2:
        return points
    kept: list[tuple[int, int]] = []
    for start in range(0, len(points), length):
        bucket = points[start : start + length]
        kept += sorted({min(bucket, key=operator.itemgetter(1)), max(bucket, key=operator.itemgetter(1))})
    return kept


def _scale(lowest: int, highest: int) -> tuple[int, int, int]:
    """Choose the axis's ends (0 unless that would squeeze all points), and the step between lines as a power of two."""
    if lowest <= highest / 2:
        lowest = min(0, lowest)
    # Changes below a hundredth are drawn as level.
    span = max(highest - lowest, highest // 100, _KIB)
    step = 1 << max(0, math.ceil(math.log2(span)) - 2)
    low = lowest // step * step
    high = -(-highest // step) * step
    return low, max(high, low + step), step


def _write_tick(size: int, step: int, high: int) -> str:
    power = min(4, max(high, 1).bit_length() // 10)
    unit = 1024**power
    decimals = 0 if step >= unit else math.ceil(math.log10(unit / step))
    return f"{size / unit:.{decimals}f} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _nice(width: float) -> int:
    if width <= 1:
        return 1
    power: int = 10 ** math.floor(math.log10(width))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= width)
