"""Lines for pytest's short test summary: each leaking test and fixture with its bytes and holder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.text import clean_text, format_bytes
from pytest_gpuleak.reports.grouping import group_safely
from pytest_gpuleak.reports.terminal.lines import ID_LIMIT, TEXT_LIMIT, first_lines
from pytest_gpuleak.reports.terminal.section import name_of_record
from pytest_gpuleak.reports.wording import count_left, describe_owners, find_origin, in_process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.model.findings import Finding, FixtureRecord
    from pytest_gpuleak.model.records import TestRecord
    from pytest_gpuleak.reports.grouping import Entry, Group

MAX_LINES = 100
"""Lines that are written where each leak is listed. The JSON report has all."""

MANY = 20
"""Leaking tests and fixtures above which the lines are one a holder, this number at most."""


def render_short_summary(
    tests: Sequence[TestRecord], fixtures: Sequence[FixtureRecord], *, every: bool = False
) -> list[str]:
    """Write a line for each record that fails, largest first: ``LEAKED t.py::test - 8.0 MiB held by app.HISTORY``.

    More than `MANY` are summed up by holder, unless `every` one is asked for. No line is cut: a holder ends it.
    """
    records: list[TestRecord | FixtureRecord] = [*fixtures, *(test for test in tests if test.verdict == "leaked")]
    leaks = [(record, failed) for record in records if (failed := [one for one in record.findings if one.failed])]
    if len(leaks) > MANY and not every:
        return _by_holder([(record, found) for record, failed in leaks for found in failed])
    leaks.sort(key=lambda leak: -sum(found.bytes for found in leak[1]))
    return first_lines(leaks, MAX_LINES, lambda leak: _line(*leak), "LEAKED and {} more")


def _by_holder(entries: Sequence[Entry]) -> list[str]:
    groups = group_safely(entries)
    lines = [_group_line(group) for group in groups[:MANY]]
    if len(groups) > MANY:
        size = format_bytes(sum(group.bytes for group in groups[MANY:]))
        lines.append(f"LEAKED {size} held by {len(groups) - MANY} more")
    return lines


def _group_line(group: Group) -> str:
    record, found = group.entries[0]
    if not group.is_shared:
        return _line(record, [found])

    def written() -> str:
        return f"LEAKED {describe_owners(group)} - {_amount([found for _, found in group.entries])}"

    return isolated(written, _unwritten)


def _line(record: TestRecord | FixtureRecord, failed: Sequence[Finding]) -> str:
    return isolated(lambda: f"LEAKED {name_of_record(record)} - {_amount(failed)}", _unwritten)


def _unwritten(why: str) -> str:
    return f"LEAKED (the line could not be written: {clean_text(why, TEXT_LIMIT)})"


def _amount(failed: Sequence[Finding]) -> str:
    largest = max(failed, key=lambda found: found.bytes)
    if largest.kind == "process":
        return f"{count_left(largest)} left running{_created(largest, 'started')}"
    where = in_process(largest)
    size = format_bytes(sum(found.bytes for found in failed))
    if largest.holder is None or not largest.holder.root:
        return f"{size}, {clean_text(largest.kind, ID_LIMIT)}{_created(largest, 'created')}{where}"
    others = len({"" if one.holder is None else one.holder.root for one in failed} - {largest.holder.root})
    more = f" and {others} more" if others else ""
    return f"{size} held by {clean_text(largest.holder.root, TEXT_LIMIT)}{more}{where}"


def _created(finding: Finding, word: str) -> str:
    origin = find_origin(finding)
    return "" if origin is None else f", {word} at {clean_text(origin.file, ID_LIMIT)}:{origin.line}"
