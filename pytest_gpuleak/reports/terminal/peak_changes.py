"""Lines on peaks: the heaviest tests of a run, and what has grown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.model.peak_changes import RowChange, describe_row_change
from pytest_gpuleak.model.text import clean_text, count_of, format_bytes, format_signed
from pytest_gpuleak.reports.terminal.lines import ID_LIMIT, INDENT, TEXT_LIMIT, TitleLine
from pytest_gpuleak.reports.terminal.peak import render_peak, title_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.model.peak_changes import PeakChange
    from pytest_gpuleak.model.peak_parts import Peak

ROWS_SHOWN = 6
"""Rows of a peak that has grown, those that have grown most."""

_SLIGHT = 20
"""Part of a growth (1/20) below which a row is not told."""


def heaviest(peaks: Sequence[tuple[str, Peak]], number: int) -> list[tuple[str, Peak]]:
    """Return the heaviest tests, by device first: where any test has used one, the host's tensors are not ranked with it."""
    on_devices = [one for one in peaks if one[1].device != "cpu"]
    ranked = sorted(on_devices or peaks, key=lambda one: (-one[1].bytes, one[0]))
    return [one for one in ranked if one[1].bytes][:number]


def render_heaviest(peaks: Sequence[tuple[str, Peak]], number: int) -> list[str]:
    """Write what fills the memory at the peaks of the heaviest tests."""
    found = heaviest(peaks, number)
    if not found:
        return ["gpu-leak: no peak was explained: no test has used a device, or made a tensor on the CPU"]
    what = "CPU tensors: no device was used" if found[0][1].device == "cpu" else "on devices"
    lines: list[str] = [f"gpu-leak: the peaks of the {count_of(len(found), 'heaviest test')} ({what})"]
    for nodeid, peak in found:
        lines += ["", TitleLine(clean_text(nodeid, ID_LIMIT)), f"{INDENT}{title_of(peak)}", *render_peak(peak)]
    return lines


def render_rows(rows: Sequence[RowChange]) -> list[str]:
    """Write the rows that have grown, those that have grown most first."""
    grown = [row for row in rows if row.grown > 0]
    total = sum(row.grown for row in grown)
    shown = [row for row in grown if row.grown * _SLIGHT >= total][:ROWS_SHOWN]
    lines = [_row_line(row) for row in shown]
    if len(shown) < len(grown):
        rest = sum(row.grown for row in grown) - sum(row.grown for row in shown)
        lines.append(f"{INDENT}{format_signed(rest):>10}  {len(grown) - len(shown)} more")
    return lines


def _row_line(change: RowChange) -> str:
    row = change.new or change.old
    assert row is not None
    cells = (row.category, row.place, row.module, describe_row_change(change))
    return f"{INDENT}{format_signed(change.grown):>10}  " + "  ".join(
        clean_text(cell, TEXT_LIMIT) for cell in cells if cell
    )


def render_grown(change: PeakChange, file: str, tolerance: float) -> list[str]:
    """Write the text of a test whose peak has grown."""
    old, new = change
    of = "CPU tensors" if new.device == "cpu" else new.device
    head = (
        f"PEAK GROWN: {format_bytes(new.bytes)} of {of}, {format_bytes(change.grown)} over the {format_bytes(old.bytes)} "
        f"of {clean_text(file, TEXT_LIMIT)} (tolerance {tolerance * 100:g} %)"
    )
    rows = render_rows(change.rows)
    return [head, *(["what grew:", *rows] if rows else [])]
