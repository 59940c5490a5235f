"""The section GPU LEAKS: each holder once, with its largest finding and its totals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.records import TestRecord
from pytest_gpuleak.model.text import clean_text, count_of, format_bytes, shorten_middle
from pytest_gpuleak.reports.grouping import group_safely
from pytest_gpuleak.reports.terminal.findings import labelled, render_finding, render_line, wrapped
from pytest_gpuleak.reports.terminal.summary import ID_LIMIT, INDENT, MIN_WIDTH, TEXT_LIMIT
from pytest_gpuleak.reports.unshown import describe_unshown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuleak.model.findings import Finding, FixtureRecord
    from pytest_gpuleak.model.records import RunReport
    from pytest_gpuleak.reports.grouping import Entry, Group

MAX_EXPLAINED = 200
"""Number of holders that are explained. Longer logs are not read; the JSON report has all."""

MAX_EXPLAINED_VERBOSE = 2_000
"""The same with ``-v``. Also the number of lines with ``-q``, and of one holder's tests with ``-v``."""

_TESTS_SHOWN = 3
_FIXTURES_SHOWN = 10


def render_leaks(report: RunReport, *, verbosity: int, width: int) -> list[str]:
    """Write the lines below the title ``GPU LEAKS``; none where there is nothing to show.

    Failing findings are explained, largest first, one entry a holder. With ``-v`` (verbosity 1) noted and allowed
    findings and each holder's path are shown too. With ``-q`` (-1) each failing finding takes one line; below that
    nothing is shown.
    """
    if verbosity < 0:
        return _render_quietly(report) if verbosity == -1 else []
    every = verbosity > 0
    width = max(width, MIN_WIDTH)
    lines: list[str] = []
    above = ""
    left: list[Group] = []
    room = MAX_EXPLAINED_VERBOSE if every else MAX_EXPLAINED
    for verdict, entries in _sections(report):
        if verdict != "leaked" and not every:
            continue
        groups = group_safely([entry for entry in entries if every or entry[1].failed])
        for group in groups[:room]:
            title = _title(group.entries[0][0], verdict)
            if title != above:
                lines += ["", title] if lines else [title]
                above = title
            lines += _render_safely(group, verbosity, width)
        left += groups[room:]
        room = max(0, room - len(groups))
    if left:
        more = f"and {count_of(len(left), 'more holder')}, {format_bytes(sum(group.bytes for group in left))} in all"
        lines += ["", f"{more}; {'' if every else '-v or '}the JSON report has them"]
    return lines


def render_totals(group: Group, *, width: int, every: bool = False) -> list[str]:
    """Write what a holder keeps in all, and for which tests; nothing for a single finding."""
    if len(group.entries) == 1:
        return []
    whose = [count_of(group.tests, "test")] if group.tests else []
    shown = group.fixtures[: MAX_EXPLAINED_VERBOSE if every else _FIXTURES_SHOWN]
    whose += [f"fixture '{clean_text(fixture.name, ID_LIMIT)}'" for fixture in shown]
    if len(shown) < len(group.fixtures):
        whose.append(count_of(len(group.fixtures) - len(shown), "more fixture"))
    total = f"{format_bytes(group.bytes)} in {count_of(len(group.entries), 'finding')}: {', '.join(whose)}"
    return wrapped("in all", total, width) + _also_in(group, width, every=every)


def name_of_record(record: TestRecord | FixtureRecord) -> str:
    """Name a test by its id, a fixture by its name, scope and place."""
    if isinstance(record, TestRecord):
        return clean_text(record.nodeid, ID_LIMIT)
    place = clean_text(record.baseid if record.file is None else record.file, ID_LIMIT)
    if record.line is not None and record.file is not None:
        place += f":{record.line}"
    where = f"{record.scope} scope, {place}" if place else f"{record.scope} scope"
    return f"fixture '{clean_text(record.name, ID_LIMIT)}' ({clean_text(where, 2 * ID_LIMIT)})"


def _also_in(group: Group, width: int, *, every: bool) -> list[str]:
    """Write the other tests and fixtures of a holder with their bytes, largest first."""
    sizes: dict[str, int] = {}
    for record, found in group.entries:
        name = name_of_record(record)
        sizes[name] = sizes.get(name, 0) + found.bytes
    del sizes[name_of_record(group.entries[0][0])]
    if not sizes:
        return []
    others = [f"{name}, {format_bytes(size)}" for name, size in sorted(sizes.items(), key=lambda one: -one[1])]
    shown = others[: MAX_EXPLAINED_VERBOSE if every else _TESTS_SHOWN]
    lines = [labelled("also in", f"{len(others)} more:" if len(others) > 1 else shown[0])]
    if len(others) > 1:
        lines += [labelled("", name) for name in shown]
    if len(shown) < len(others):
        lines.append(labelled("", f"and {len(others) - len(shown)} more{'' if every else ' (-v shows all)'}"))
    return [shorten_middle(line, width) for line in lines]


def _render_safely(group: Group, verbosity: int, width: int) -> list[str]:
    record, found = group.entries[0]

    def part() -> list[str]:
        explained = render_finding(found, verbosity=verbosity, width=width)
        return explained + render_totals(group, width=width, every=verbosity > 0)

    return isolated(part, lambda why: [INDENT + describe_unshown(record, found, why)])


def _render_quietly(report: RunReport) -> list[str]:
    failed = [
        entry for verdict, entries in _sections(report) if verdict == "leaked" for entry in entries if entry[1].failed
    ]
    lines = [_line(*entry) for entry in failed[:MAX_EXPLAINED_VERBOSE]]
    if len(failed) > len(lines):
        lines.append(f"and {count_of(len(failed) - len(lines), 'more leak')}; the JSON report has them")
    return lines


def _line(record: TestRecord | FixtureRecord, found: Finding) -> str:
    return isolated(
        lambda: f"{name_of_record(record)}: {render_line(found)}", lambda why: describe_unshown(record, found, why)
    )


def _sections(report: RunReport) -> Iterator[tuple[str, Sequence[Entry]]]:
    sections: dict[str, list[Entry]] = {"leaked": [], "noted": [], "allowed": []}
    for test in report.tests:
        if test.verdict in sections:
            sections[test.verdict] += [(test, found) for found in test.findings]
    for fixture in report.fixtures:
        verdict = "leaked" if any(found.failed for found in fixture.findings) else "noted"
        sections[verdict if fixture.allowed is None else "allowed"] += [(fixture, found) for found in fixture.findings]
    yield from sections.items()


def _title(record: TestRecord | FixtureRecord, verdict: str) -> str:
    def part() -> str:
        worker = "" if record.worker == "main" else f" [{clean_text(record.worker, ID_LIMIT)}]"
        reason = f": {clean_text(record.allowed, TEXT_LIMIT)}" if record.allowed else ""
        known = verdict == "noted" and any(found.known for found in record.findings)
        return f"{'KNOWN' if known else verdict.upper()} {name_of_record(record)}{worker}{reason}"

    return isolated(part, lambda why: f"{verdict.upper()} (a title that could not be shown: {why})")
