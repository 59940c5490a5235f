"""The Markdown report: a job summary for GitHub, or any reader of GitHub-flavoured Markdown.

User text stands in ``<code>`` or ``<pre>`` of HTML blocks, where Markdown is not read. An empty line would end a block.
"""

from __future__ import annotations

import html
from functools import partial
from typing import TYPE_CHECKING

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.text import clean_text, count_of, format_bytes, shorten_middle, wrap_text
from pytest_gpuleak.reports.grouping import Group, group_safely
from pytest_gpuleak.reports.source_places import describe_unshown, findings_of, name_of
from pytest_gpuleak.reports.terminal.closing import describe_facts
from pytest_gpuleak.reports.terminal.findings import render_finding
from pytest_gpuleak.reports.terminal.holders import place_of_edit, place_of_root
from pytest_gpuleak.reports.terminal.lines import ID_LIMIT, INDENT, TEXT_LIMIT
from pytest_gpuleak.reports.terminal.peak import heaviest, render_peak, title_of
from pytest_gpuleak.reports.terminal.section import render_largest, render_totals
from pytest_gpuleak.reports.terminal.summary import render_summary
from pytest_gpuleak.reports.wording import describe_owners, find_origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_gpuleak.model.findings import Finding, FixtureRecord, KnownLeak
    from pytest_gpuleak.model.peak_parts import Peak
    from pytest_gpuleak.model.records import RunReport, TestRecord
    from pytest_gpuleak.reports.grouping import Entry

MAX_BYTES = 1_000_000
"""Largest report, in bytes. GitHub shows no step summary over 1 MiB."""

MIN_BYTES = 2_000
"""Smallest limit that leaves room for the verdict and the statement of a cut, in bytes."""

_ROWS_SHOWN = 100
_LISTED = 100
_WIDTH = 110
_CELL = 120
_SENTENCE = 2_000


def encode_report(report: RunReport, *, limit: int = MAX_BYTES) -> str:
    """Write a report as Markdown in at most `limit` (at least `MIN_BYTES`) bytes of UTF-8. A cut is stated."""
    entries = findings_of(report)
    failed = [entry for entry in entries if entry[1].failed]
    known = [entry for entry in entries if entry[1].known and not entry[1].failed]
    page = _Page(limit)
    page.add(_head(report, failed, known))
    if failed:
        groups = group_safely(failed)
        page.add_table(groups)
        page.add_details(groups)
    page.add_peaks([(test.nodeid, test.peak) for test in report.tests if test.peak is not None])
    if known:
        lines = [isolated(partial(_known_line, *entry), partial(_unshown, *entry)) for entry in known[:_LISTED]]
        page.add(_listed(count_of(len(known), "known leak"), len(known), lines))
    if report.stale:
        title = f"{count_of(len(report.stale), 'leak')} of the baseline gone: remove the entries"
        page.add(_listed(title, len(report.stale), [_stale_line(entry) for entry in report.stale[:_LISTED]]))
    page.add_facts(describe_facts(report))
    return page.text()


class _Page:
    _RESERVE = 300

    def __init__(self, limit: int) -> None:
        self._room = limit - self._RESERVE
        self._blocks: list[str] = []
        self._cut: list[str] = []

    def add(self, block: str) -> bool:
        size = len(block.encode()) + 1
        if size > self._room:
            return False
        self._room -= size
        self._blocks.append(block)
        return True

    def add_table(self, groups: Sequence[Group]) -> None:
        rows = [_safely(_row, group, "<tr><td>{}</td></tr>") for group in groups[:_ROWS_SHOWN]]
        while rows and not self.add(_table(rows)):
            rows = rows[: len(rows) // 2]
        if len(rows) < len(groups):
            self._cut.append(f"{count_of(len(groups) - len(rows), 'more holder')} not in the table")

    def add_details(self, groups: Sequence[Group]) -> None:
        for explained, group in enumerate(groups):
            if not self.add(_safely(_details, group, "<p>{}</p>\n")):
                self._cut.append(f"{count_of(len(groups) - explained, 'holder')} not explained")
                return

    def add_facts(self, sentences: Sequence[str]) -> None:
        if sentences and not self.add(_facts(sentences)):
            self._cut.append(f"{count_of(len(sentences), 'line')} on what else the run met")

    def add_peaks(self, peaks: Sequence[tuple[str, Peak]]) -> None:
        shown = heaviest(peaks, _LISTED)
        for told, (nodeid, peak) in enumerate(shown):
            if not self.add(_peak_safely(nodeid, peak)):
                self._cut.append(f"{count_of(len(shown) - told, 'peak')} not explained")
                return

    def text(self) -> str:
        cut = [f"Cut to fit: {'; '.join(self._cut)}. The JSON report has all.\n"] if self._cut else []
        return "\n".join([*self._blocks, *cut])


def _head(report: RunReport, failed: Sequence[Entry], known: Sequence[Entry]) -> str:
    if failed:
        size = isolated(lambda: f", {format_bytes(sum(found.bytes for _, found in failed))}", lambda _: "")
        title = f"{count_of(len(failed), 'GPU memory leak')}{size}"
    else:
        title = "No new GPU memory leaks found" if known else "No GPU memory leaks found"
    if report.incomplete is not None:
        title += ", but the run is incomplete"
    counts = isolated(lambda: render_summary(report.summary), lambda why: f"the counts could not be shown ({why})")
    lines = [f"### {title}", "", f"<p>{html.escape(counts)}</p>"]
    if report.incomplete is not None:
        lines += ["", f"<p><b>Incomplete, tests are missing:</b> {_code(report.incomplete, TEXT_LIMIT)}</p>"]
    return "\n".join(lines) + "\n"


def _facts(sentences: Sequence[str]) -> str:
    lines = [line for text in sentences for line in wrap_text(clean_text(text, _SENTENCE), _WIDTH, further=INDENT)]
    return "\n".join([f"<pre>{html.escape(lines[0])}", *map(html.escape, lines[1:]), "</pre>"]) + "\n"


def _table(rows: Iterable[str]) -> str:
    heads = "".join(f"<th>{name}</th>" for name in ("Leaked", "Held by", "Edit at", "Left by", "Kind", "Created at"))
    return "\n".join(["<table>", f"<tr>{heads}</tr>", *rows, "</table>"]) + "\n"


def _row(group: Group) -> str:
    record, found = group.entries[0]
    holder = found.holder
    held = "unknown" if not found.contributions else _code(found.contributions[0].text, _CELL)
    if holder is not None:
        held = _code(holder.text or holder.root or holder.kind, _CELL)
    if found.process is not None:
        held += f" in {_code(found.process.text, _CELL)}"
    place = place_of_edit(found.edit) or ("" if holder is None else place_of_root(holder))
    origin = find_origin(found)
    created = "unknown" if origin is None else _code(f"{origin.file}:{origin.line}", ID_LIMIT)
    left_by = _code(name_of(record), ID_LIMIT)
    if group.is_shared:
        left_by = f"{_owners(group)}, most by {left_by}"
    size = f"{format_bytes(group.bytes)} on {_code(found.device, 40)}"
    cells = (size, held, _code(place, ID_LIMIT) if place else "", left_by, _kind(found.kind), created)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _owners(group: Group) -> str:
    return describe_owners(group, quoted=lambda name: _code(name, ID_LIMIT))


def _safely(write: Callable[[Group], str], group: Group, unshown: str) -> str:
    return isolated(partial(write, group), lambda why: unshown.format(_unshown(*group.entries[0], why)))


def _details(group: Group) -> str:
    record, found = group.entries[0]
    text = [
        *render_largest(group),
        *render_finding(found, verbosity=1, width=_WIDTH),
        *render_totals(group, width=_WIDTH),
    ]
    lines = [html.escape(line) for line in text if line.strip()]
    title = f"{_code(name_of(record), ID_LIMIT)}: {_kind(found.kind)}, {format_bytes(found.bytes)}"
    if group.is_shared:
        held = "" if found.holder is None else f" held by {_code(found.holder.root or found.holder.text, _CELL)}"
        title = f"{format_bytes(group.bytes)}{held}, left by {_owners(group)}"
    return "\n".join([f"<details><summary>{title}</summary>", f"<pre>{lines[0]}", *lines[1:], "</pre></details>", ""])


def _peak(nodeid: str, peak: Peak) -> str:
    lines = [html.escape(line) for line in render_peak(peak)]
    title = f"{_code(nodeid, ID_LIMIT)}: {html.escape(title_of(peak))}"
    return "\n".join([f"<details><summary>{title}</summary>", "<pre>" + "\n".join(lines) + "</pre></details>", ""])


def _peak_safely(nodeid: str, peak: Peak) -> str:
    def unshown(why: str) -> str:
        return f"<p>{_code(f'{nodeid}: its peak could not be shown ({why})', 2 * TEXT_LIMIT)}</p>\n"

    return isolated(lambda: _peak(nodeid, peak), unshown)


def _unshown(record: TestRecord | FixtureRecord, found: Finding, why: str) -> str:
    return _code(describe_unshown(record, found, why), 2 * TEXT_LIMIT)


def _listed(title: str, count: int, lines: Sequence[str]) -> str:
    shown = [f"<li>{line}</li>" for line in lines]
    if count > len(lines):
        shown.append(f"<li>and {count - len(lines)} more; the JSON report has all</li>")
    return "\n".join([f"<details><summary>{title}</summary>", "<ul>", *shown, "</ul></details>"]) + "\n"


def _known_line(record: TestRecord | FixtureRecord, found: Finding) -> str:
    held = "" if found.holder is None else f", held by {_code(found.holder.text or found.holder.kind, _CELL)}"
    reason = "" if found.baseline is None or not found.baseline.text else f"; {_code(found.baseline.text, TEXT_LIMIT)}"
    held += "" if found.process is None else f" in {_code(found.process.text, _CELL)}"
    return f"{_code(name_of(record), ID_LIMIT)}: {_kind(found.kind)}, {format_bytes(found.bytes)}{held}{reason}"


def _stale_line(entry: KnownLeak) -> str:
    name = entry.test if entry.fixture is None else f"fixture '{entry.fixture}' of {entry.test}"
    held = f", held by {_code(entry.holder, _CELL)}" if entry.holder else ""
    return f"{_code(name, ID_LIMIT)}: {_kind(entry.kind)}, {format_bytes(entry.bytes)}{held}"


def _kind(kind: str) -> str:
    return html.escape(clean_text(kind, 40))


def _code(text: str, limit: int) -> str:
    return f"<code>{html.escape(shorten_middle(clean_text(text, TEXT_LIMIT), limit))}</code>"
