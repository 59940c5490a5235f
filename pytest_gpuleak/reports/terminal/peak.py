"""Render peaks: what filled the memory, the heaviest tests of a run and what has grown, for a terminal and a notebook."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from pytest_gpuleak.model.peak_changes import RowChange, describe_row_change
from pytest_gpuleak.model.peak_parts import sum_of
from pytest_gpuleak.model.text import clean_text, count_of, format_bytes, format_signed
from pytest_gpuleak.reports.terminal.lines import ID_LIMIT, INDENT, TEXT_LIMIT, TitleLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.model.peak_changes import PeakChange
    from pytest_gpuleak.model.peak_parts import Peak, PeakMoment, PeakPart


_HEAD = ("bytes", "tensors", "used as", "made at", "module")
_MOST_SIZES = 8


def render_peak(peak: Peak, budget: int | None = None) -> list[str]:
    """Return the lines below the one with the peak: when it was, its parts, and what would bring it under a budget."""
    lines = [] if peak.moment is None else [f"{INDENT}when    {_when(peak.moment)}"]
    rows = _rows(peak)
    widths = [max((len(row[column]) for row in rows if row[3]), default=0) for column in range(4)]
    for row in rows:
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row[1:4], widths[1:], strict=True))
        lines.append(f"{INDENT}{row[0].rjust(9)}  {cells}  {row[4]}".rstrip())
    return [*lines, *(INDENT + note for note in _notes(peak, budget))]


def title_of(peak: Peak) -> str:
    """Return the line above those of `render_peak`, where no budget has one."""
    if not (peak.bytes or peak.parts):
        return "no tensor was made"
    return f"peak of {format_bytes(peak.bytes)} on {clean_text(peak.device, TEXT_LIMIT)}, above what was there before"


def render_html(peak: Peak) -> str:
    """Return the same as a table, for a notebook."""
    head = "".join(f"<th>{name}</th>" for name in _HEAD)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in _rows(peak))
    notes = [*([] if peak.moment is None else [f"when: {_when(peak.moment)}"]), *_notes(peak)]
    said = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return f"<p>{html.escape(title_of(peak))}</p>{said}<table><tr>{head}</tr>{body}</table>"


def _notes(peak: Peak, budget: int | None = None) -> list[str]:
    beside = f"not in the peak: {format_bytes(peak.workspaces_bytes or 0)} of workspaces, which libraries keep for later calls"
    notes = filter(None, (sum_of(peak, budget), beside if peak.workspaces_bytes else ""))
    return [*notes, *(f"not told: {clean_text(one, TEXT_LIMIT)}" for one in peak.lacks)]


def _when(moment: PeakMoment) -> str:
    said: list[str] = [moment.phase]
    if moment.file is not None:
        at = f"{moment.file}:{moment.line}"
        said.append(f"{at}, of line {moment.forward}" if moment.forward else f"{at} in {moment.function}")
    if moment.module:
        said.append(f"module {moment.module}")
    return clean_text(", ".join(said) + (f" ({moment.operator})" if moment.operator else ""), TEXT_LIMIT)


def _rows(peak: Peak) -> list[tuple[str, str, str, str, str]]:
    rows = [_row(part) for part in peak.parts]
    if peak.unsplit_bytes:
        rows.append((format_bytes(peak.unsplit_bytes), "rounding and unsplit blocks", "", "", ""))
    if peak.unexplained_bytes:
        what = "not explained" + (": inside operators, of libraries, rounding" if peak.workspaces_bytes is None else "")
        rows.append((format_bytes(peak.unexplained_bytes), what, "", "", ""))
    return rows


def _row(part: PeakPart) -> tuple[str, str, str, str, str]:
    if part.category == "smaller":
        return format_bytes(part.bytes), f"{part.count} smaller", clean_text(part.note, TEXT_LIMIT), "", ""
    made = "" if part.created is None else f"{part.created.file}:{part.created.line}"
    category, note = str(part.category), part.note
    if category == "inside":
        operator, _, note = note.partition(", ")
        category = f"inside {operator}"
    what = f"{part.count} x {part.dtype} {_form(part.shape)}" if part.dtype else count_of(part.count, "block")
    cells = (what, category, note or made, part.module)
    first, category, place, module = (clean_text(cell, TEXT_LIMIT) for cell in cells)
    return format_bytes(part.bytes), first, category, place, module


def _form(shape: Sequence[int]) -> str:
    sizes = [*map(str, shape[:_MOST_SIZES]), *(["..."] if len(shape) > _MOST_SIZES else [])]
    return f"[{', '.join(sizes)}]"


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
    """Write the rows that differ, first those that have grown, most first, then those that have shrunk: they add up to the change."""
    grown = [row for row in rows if row.grown > 0]
    shrunk = [row for row in reversed(rows) if row.grown < 0]
    total = sum(row.grown for row in grown)
    shown = [row for part in (grown, shrunk) for row in _large(part, total)]
    lines = [_row_line(row) for row in shown]
    if len(shown) < len(grown) + len(shrunk):
        rest = sum(row.grown for row in rows) - sum(row.grown for row in shown)
        lines.append(f"{INDENT}{format_signed(rest):>10}  {len(grown) + len(shrunk) - len(shown)} more")
    return lines


def _large(rows: Sequence[RowChange], total: int) -> list[RowChange]:
    return [row for row in rows if abs(row.grown) * _SLIGHT >= total][:ROWS_SHOWN]


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
    title = "what grew, and what shrank:" if any(row.grown < 0 for row in change.rows) else "what grew:"
    return [head, *([title, *rows] if rows else [])]
