"""Render what filled the memory at a peak: lines for a terminal, and a table for a notebook."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from pytest_gpuleak.model.peak_parts import sum_of
from pytest_gpuleak.model.text import clean_text, count_of, format_bytes
from pytest_gpuleak.reports.terminal.lines import INDENT, TEXT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Sequence

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
