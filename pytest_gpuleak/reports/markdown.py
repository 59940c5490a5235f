"""The Markdown report: a job summary for GitHub and whatever else shows GitHub-flavoured Markdown.

Whatever comes from the user stands in HTML blocks, inside ``<code>`` or ``<pre>``, with HTML's own escapes. Markdown is
not read in there: no pipe ends a cell, no backtick a span, and GitHub makes no link, mention or reference of it. A block
ends at an empty line, so none is written inside one.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from pytest_gpuleak.reports.places import culprits_of, findings_of, name_of
from pytest_gpuleak.reports.standing import standing_of
from pytest_gpuleak.reports.terminal import render_finding
from pytest_gpuleak.reports.terminal_summary import ID_LIMIT, TEXT_LIMIT, render_summary
from pytest_gpuleak.reports.text import clean_text, count_of, format_bytes, shorten_middle

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pytest_gpuleak.findings import Finding, FixtureRecord, KnownLeak
    from pytest_gpuleak.records import RunReport, TestRecord

    Entry = tuple[TestRecord | FixtureRecord, Finding]

MAX_BYTES = 1_000_000
"""Bytes of a whole report: GitHub shows no summary of a step that is over 1 MiB."""

MIN_BYTES = 2_000
"""Bytes below which no summary is worth writing: the verdict takes some of them, and a cut is always stated."""

_ROWS_SHOWN = 100
_LISTED = 100
_WIDTH = 110
_CELL = 120
_ALSO_SHOWN = 5


def encode_report(report: RunReport, *, limit: int = MAX_BYTES) -> str:
    """Write a report as Markdown, in at most `limit` bytes of UTF-8; what is cut is stated.

    Args:
        report: the run.
        limit: bytes, at least `MIN_BYTES`.
    """
    entries = findings_of(report)
    failed = [entry for entry in entries if entry[1].failed]
    known = [entry for entry in entries if entry[1].known and not entry[1].failed]
    page = _Page(limit)
    page.add(_head(report, failed, known))
    if failed:
        page.add_table(failed)
        page.add_details(failed)
    if known:
        page.add(_listed(count_of(len(known), "known leak"), [_known_line(*entry) for entry in known]))
    if report.stale:
        title = f"{count_of(len(report.stale), 'leak')} of the baseline gone: remove the entries"
        page.add(_listed(title, [_stale_line(entry) for entry in report.stale]))
    return page.text()


def write(report: RunReport, path: Path) -> None:
    """Write a report to a file, in one step. Raises OSError, as `write_text` does."""
    from pytest_gpuleak.reports.writing import write_text

    write_text(encode_report(report), path)


class _Page:
    """Blocks that together stay below a limit; the room that a statement of a cut takes is kept free."""

    _RESERVE = 300

    def __init__(self, limit: int) -> None:
        self._room = limit - self._RESERVE
        self._blocks: list[str] = []
        self._cut: list[str] = []

    def add(self, block: str) -> bool:
        """Add a block that ends in a newline; False where it does not fit."""
        size = len(block.encode()) + 1
        if size > self._room:
            return False
        self._room -= size
        self._blocks.append(block)
        return True

    def add_table(self, failed: Sequence[Entry]) -> None:
        """Add the table of leaks, with as many rows as are worth reading and fit."""
        rows = [_row(*entry) for entry in failed[:_ROWS_SHOWN]]
        while rows and not self.add(_table(rows)):
            rows = rows[: len(rows) // 2]
        if len(rows) < len(failed):
            self._cut.append(f"{len(failed) - len(rows)} more leaks not in the table")

    def add_details(self, failed: Sequence[Entry]) -> None:
        """Explain the leaks until one does not fit."""
        explained = 0
        for met in culprits_of(list(failed)):
            if not self.add(_details(met)):
                self._cut.append(f"{count_of(len(failed) - explained, 'leak')} not explained")
                return
            explained += len(met)

    def text(self) -> str:
        """The whole page."""
        cut = [f"Cut to fit: {'; '.join(self._cut)}. The JSON report has all.\n"] if self._cut else []
        return "\n".join([*self._blocks, *cut])


def _head(report: RunReport, failed: Sequence[Entry], known: Sequence[Entry]) -> str:
    if failed:
        size = sum(found.bytes for _, found in failed)
        title = f"{count_of(len(failed), 'GPU memory leak')}, {format_bytes(size)}"
    else:
        title = "No new GPU memory leaks found" if known else "No GPU memory leaks found"
    if report.incomplete is not None:
        title += ", but the run is incomplete"
    lines = [f"### {title}", "", f"<p>{html.escape(render_summary(report.summary))}</p>"]
    if report.incomplete is not None:
        lines += ["", f"<p><b>Incomplete, tests are missing:</b> {_code(report.incomplete, TEXT_LIMIT)}</p>"]
    return "\n".join(lines) + "\n"


def _table(rows: Iterable[str]) -> str:
    heads = "".join(f"<th>{name}</th>" for name in ("Test", "Kind", "Device", "Leaked", "Held by", "Created at"))
    return "\n".join(["<table>", f"<tr>{heads}</tr>", *rows, "</table>"]) + "\n"


def _row(record: TestRecord | FixtureRecord, found: Finding) -> str:
    if found.holder is not None:
        holder = _code(found.holder.text or found.holder.root or found.holder.kind, _CELL)
    else:
        holder = "unknown"
    origin = next((array.created for array in found.tensors if array.created is not None), None) or next(
        (part.created for part in found.contributions if part.created is not None), None
    )
    created = "unknown" if origin is None else _code(f"{origin.file}:{origin.line}", ID_LIMIT)
    cells = (_code(name_of(record), ID_LIMIT), found.kind, _code(found.device, 40), format_bytes(found.bytes))
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in (*cells, holder, created)) + "</tr>"


def _details(met: Sequence[Entry]) -> str:
    """Explain a culprit, and name the first of the other tests that met it."""
    record, found = met[0]
    lines = [html.escape(line) for line in render_finding(found, verbosity=1, width=_WIDTH) if line.strip()]
    lines += [
        f"  also in  {html.escape(clean_text(name_of(other), ID_LIMIT))}" for other, _ in met[1 : _ALSO_SHOWN + 1]
    ]
    if len(met) > _ALSO_SHOWN + 1:
        lines.append(f"           and {len(met) - _ALSO_SHOWN - 1} more")
    title = f"{_code(name_of(record), ID_LIMIT)}: {found.kind}, {format_bytes(found.bytes)}"
    if len(met) > 1:
        title += f"; also in {len(met) - 1} more"
    return (
        "\n".join([f"<details><summary>{title}</summary>", f"<pre>{lines[0]}", *lines[1:], "</pre></details>"]) + "\n"
    )


def _listed(title: str, lines: Sequence[str]) -> str:
    shown = [f"<li>{line}</li>" for line in lines[:_LISTED]]
    if len(lines) > _LISTED:
        shown.append(f"<li>and {len(lines) - _LISTED} more; the JSON report has all</li>")
    return "\n".join([f"<details><summary>{title}</summary>", "<ul>", *shown, "</ul></details>"]) + "\n"


def _known_line(record: TestRecord | FixtureRecord, found: Finding) -> str:
    held = "" if found.holder is None else f", held by {_code(found.holder.text or found.holder.kind, _CELL)}"
    standing = standing_of(found)
    reason = "" if standing is None or not standing.text else f"; {_code(standing.text, TEXT_LIMIT)}"
    return f"{_code(name_of(record), ID_LIMIT)}: {found.kind}, {format_bytes(found.bytes)}{held}{reason}"


def _stale_line(entry: KnownLeak) -> str:
    name = entry.test if entry.fixture is None else f"fixture '{entry.fixture}' of {entry.test}"
    held = f", held by {_code(entry.holder, _CELL)}" if entry.holder else ""
    return f"{_code(name, ID_LIMIT)}: {entry.kind}, {format_bytes(entry.bytes)}{held}"


def _code(text: str, limit: int) -> str:
    """Text of the user's, for an HTML block."""
    return f"<code>{html.escape(shorten_middle(clean_text(text, TEXT_LIMIT), limit))}</code>"
