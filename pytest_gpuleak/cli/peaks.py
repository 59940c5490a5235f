"""Peaks of reports: what has grown from one to another, and beyond a file of peaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from pytest_gpuleak.baseline.peaks import Made, Peaks, key_of
from pytest_gpuleak.model.peak_changes import PeakChange, changed_peaks, peaks_by_test
from pytest_gpuleak.model.text import clean_text, count_of, format_bytes, format_signed
from pytest_gpuleak.reports.terminal.lines import ID_LIMIT, TEXT_LIMIT
from pytest_gpuleak.reports.terminal.peak import render_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpuleak.model.peak_changes import KnownPeak
    from pytest_gpuleak.model.peak_parts import Peak
    from pytest_gpuleak.model.records import RunReport

_SHOWN = 200


class PeakComparison(NamedTuple):
    """The tests whose peaks have changed beyond the tolerance, of `compared`; `why_not` tells why none was compared."""

    grown: list[PeakChange]
    shrunk: list[PeakChange]
    compared: int
    why_not: str = ""


def compare_peaks(old: RunReport, new: RunReport, tolerance: float) -> PeakComparison:
    """Compare the peaks of the tests that both reports have them of."""
    return _compare(_peaks_of(old), new, Peaks(made=_made(old), tolerance=tolerance))


def hold_to_peaks(report: RunReport, peaks: Peaks) -> PeakComparison:
    """Compare a report's peaks with a file."""
    return _compare({key_of(entry): entry for entry in peaks.entries}, report, peaks)


def _compare(before: dict[tuple[str, str], KnownPeak], report: RunReport, peaks: Peaks) -> PeakComparison:
    after = {key: peak for key, peak in _peaks_of(report).items() if key in before}
    made = _made(report)
    why = {device: peaks.why_not_compared(device, made) for _, device in after}
    told = {key: peak for key, peak in after.items() if not why[key[1]]}
    grown, shrunk = changed_peaks(before, told, peaks.tolerance)
    return PeakComparison(grown, shrunk, len(told), next(filter(None, why.values()), ""))


def render_peaks(found: PeakComparison, tolerance: float) -> list[str]:
    """Write which peaks have grown, with what grew, and which have shrunk; nothing where there are none to compare."""
    lines: list[str] = []
    for change in found.grown[:_SHOWN]:
        lines += [click.style(_title("PEAK GROWN", change), fg="red"), f"        {_sizes(change)}"]
        lines += [f"        {line.strip()}" for line in render_rows(change.rows)]
    for change in found.shrunk[:_SHOWN]:
        lines += [_title("PEAK SHRUNK", change), f"        {_sizes(change)}"]
    if found.why_not:
        lines.append(f"gpu-leak: peaks were not compared: {clean_text(found.why_not, TEXT_LIMIT)}")
    if found.compared:
        parts = f"{len(found.grown)} grown, {len(found.shrunk)} shrunk (tolerance {tolerance * 100:g} %)"
        lines.append(f"gpu-leak: {count_of(found.compared, 'peak')} compared: {parts}")
    return lines


def _title(word: str, change: PeakChange) -> str:
    return f"{word} {clean_text(change.new.test, ID_LIMIT)}"


def _sizes(change: PeakChange) -> str:
    old, new = change
    of = "CPU tensors" if new.device == "cpu" else clean_text(new.device, TEXT_LIMIT)
    return f"{format_bytes(old.bytes)} -> {format_bytes(new.bytes)} of {of} ({format_signed(change.grown)})"


def _peaks_of(report: RunReport) -> dict[tuple[str, str], KnownPeak]:
    def each() -> Iterator[tuple[str, Peak | None]]:
        for test in report.tests:
            yield test.nodeid, test.peak
            for finding in test.findings:
                yield test.nodeid, finding.peak

    return peaks_by_test(each())


def _made(report: RunReport) -> Made:
    torch, devices = report.environment.get("torch"), report.environment.get("devices")
    names: Iterable[object] = devices if isinstance(devices, (list, tuple)) else ()
    gpus = dict.fromkeys(name.partition(" ")[2] or name for name in names if isinstance(name, str))
    return Made(torch if isinstance(torch, str) else "", ", ".join(gpus))
