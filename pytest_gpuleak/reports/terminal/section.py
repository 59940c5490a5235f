"""The section GPU LEAKS: each holder once, by size, with its largest finding. Without ``-v`` it fits on two screens."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.records import TestRecord
from pytest_gpuleak.model.text import clean_text, count_of, format_bytes, shorten_middle, wrap_text
from pytest_gpuleak.reports.grouping import group_safely
from pytest_gpuleak.reports.source_places import describe_unshown, findings_of
from pytest_gpuleak.reports.terminal.findings import render_amount, render_briefly, render_finding, render_line
from pytest_gpuleak.reports.terminal.holders import chain_lines
from pytest_gpuleak.reports.terminal.lines import (
    ID_LIMIT,
    INDENT,
    LABEL_INDENT,
    MIN_WIDTH,
    TEXT_LIMIT,
    TitleLine,
    dimmed,
    fits,
    labelled,
    wrap_name,
)
from pytest_gpuleak.reports.wording import FIXTURES_SHOWN, describe_owners

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpuleak.model.findings import Finding, FixtureRecord
    from pytest_gpuleak.model.records import RunReport
    from pytest_gpuleak.reports.grouping import Entry, Group

MAX_ENTRIES = 40
"""Number of holders that are shown. Longer logs are not read; the JSON report has all."""

MAX_ENTRIES_VERBOSE = 2_000
"""The same with ``-v``, where each is explained. Also the lines with ``-q``, and of one holder's tests with ``-v``."""

ROOM = 80
"""Lines that the entries may take in all before some are shortened: with the rest of the run's end, two screens."""

_TESTS_SHOWN = 3
_CODES_SHOWN = 6
_HELD_BY = labelled("held by", "")
_AS_ABOVE = labelled("held by", "as above")
_WORTH_A_LINE = 3  # equal lines from which on "as above" stands for them
_SIZE_COLUMNS = 10


def render_leaks(report: RunReport, *, verbosity: int, width: int) -> list[str]:
    """Write the lines below ``GPU LEAKS``: failing findings, one entry a holder.

    Verbosity 1 adds what is noted and allowed, and whole paths; -1 leaves a line a holder, and less than that nothing.
    """
    if verbosity < 0:
        return _render_quietly(report) if verbosity == -1 else []
    width = max(width, MIN_WIDTH)
    if verbosity > 0:
        return _render_all(report, verbosity, width)
    groups = group_safely(_failing(report))
    shown = groups[:MAX_ENTRIES]
    lines = _render_in_room(shown, width)
    if len(shown) < len(groups):
        lines += ["", _left_out(groups[len(shown) :], "-v or the JSON report has them")]
    later = _judged_later(report, width)
    return [*lines, "", *later] if lines and later else lines or later


def render_codes(report: RunReport) -> list[str]:
    """Write the command with the codes of what failed, those with the most bytes first; nothing where none failed."""
    sizes: dict[str, int] = {}

    def add(found: Finding) -> None:
        if found.failed and found.code:
            sizes[found.code] = sizes.get(found.code, 0) + found.bytes

    for _, found in findings_of(report):
        isolated(functools.partial(add, found), lambda _: None)
    codes = sorted(sizes, key=lambda code: -sizes[code])[:_CODES_SHOWN]
    return [f"gpu-leak: more on each: gpuleak explain {clean_text(' '.join(codes), ID_LIMIT)}"] if codes else []


def render_totals(group: Group, *, width: int, every: bool = False) -> list[str]:
    """Write which other tests and fixtures a holder's findings are of; nothing for a single finding."""
    if len(group.entries) == 1:
        return []
    if not group.is_shared:
        total = f"{format_bytes(group.bytes)} in {count_of(len(group.entries), 'finding')}"
        return dimmed([labelled("in all", total)])
    return dimmed(_also_in(group, width, every=every))


def render_largest(group: Group) -> list[str]:
    """Write whose finding is explained, where several share the holder."""
    if not group.is_shared:
        return []
    record, found = group.entries[0]
    return dimmed([labelled("largest", f"{name_of_record(record)}{_worker(record)}, {format_bytes(found.bytes)}")])


def name_of_record(record: TestRecord | FixtureRecord) -> str:
    """Name a test by its id, a fixture by its name, scope and place."""
    if isinstance(record, TestRecord):
        return clean_text(record.nodeid, ID_LIMIT)
    place = clean_text(record.baseid if record.file is None else record.file, ID_LIMIT)
    if record.line is not None and record.file is not None:
        place += f":{record.line}"
    where = f"{record.scope} scope, {place}" if place else f"{record.scope} scope"
    return f"fixture '{clean_text(record.name, ID_LIMIT)}' ({clean_text(where, 2 * ID_LIMIT)})"


def _render_all(report: RunReport, verbosity: int, width: int) -> list[str]:
    lines: list[str] = []
    above = ""
    left: list[Group] = []
    room = MAX_ENTRIES_VERBOSE
    for verdict, entries in _sections(report):
        groups = group_safely(entries)
        for group in groups[:room]:
            titles = _titles(group, verdict, width, every=True)
            above = _add_entry(lines, above, titles, _in_full(group, verbosity, width))
        left += groups[room:]
        room = max(0, room - len(groups))
    return [*lines, "", _left_out(left, "the JSON report has them")] if left else lines


def _render_in_room(groups: Sequence[Group], width: int) -> list[str]:
    lines: list[str] = []
    above = ""
    short = [_in_a_line(group, width) for group in groups]
    forms: list[list[str] | None] = [_in_full(group, 0, width) for group in groups[:1]]
    forms += [None] * (len(groups) - 1)
    room = ROOM - sum(map(len, [*short[1:], *forms[:1]]))  # type: ignore[arg-type]  # the first one is written
    for write in (_briefly, _in_full):
        for index, group in enumerate(groups[1:], 1):
            written, before = write(group, 0, width), forms[index]
            # A title, and an empty line above it, come with what takes more than a line.
            cost = len(written) + 2 - len(short[index]) if before is None else len(written) - len(before)
            if cost > room:
                break
            forms[index], room = written, room - cost
    for group, form in zip(groups, forms, strict=True):
        if form is not None:
            above = _add_entry(lines, above, _titles(group, "leaked", width, every=False), form)
    rest = [group for group, form in zip(groups, forms, strict=True) if form is None]
    if rest:
        lines += ["", TitleLine(f"{count_of(len(rest), 'smaller one')}, in short (-v explains each)")]
        lines += [line for group in rest for line in _in_a_line(group, width)]
    return lines


def _add_entry(lines: list[str], above: str, titles: list[str], form: list[str]) -> str:
    """Add an entry below its title, which entries of the same test share; return the title."""
    title = "\n".join(titles)
    if title != above:
        lines += ["", *titles] if lines else titles
    else:
        form = _without_repetition(form, lines)
    lines += form
    return title


def _without_repetition(form: list[str], told: Sequence[str]) -> list[str]:
    """Leave out of an entry what the entry above says of holder, fix and lines: of another device, that is the same."""
    start = next((index for index, line in enumerate(form) if line.startswith(_HELD_BY)), None)
    holders = (index for index in range(len(told) - 1, -1, -1) if told[index].startswith(_HELD_BY))
    before = next((index for index in holders if told[index] != _AS_ABOVE), None)
    if start is None or before is None:
        return form
    end = start
    while end < len(form) and end - start < len(told) - before and form[end] == told[before + end - start]:
        end += 1
    while start < end < len(form) and form[end].startswith(LABEL_INDENT):  # a labelled line is left out as a whole
        end -= 1
    return form if end - start < _WORTH_A_LINE else [*form[:start], _AS_ABOVE, *form[end:]]


def _left_out(groups: Sequence[Group], where: str) -> str:
    return f"and {count_of(len(groups), 'more holder')}, {format_bytes(sum(group.bytes for group in groups))} in all; {where}"


def _also_in(group: Group, width: int, *, every: bool) -> list[str]:
    sizes: dict[str, int] = {}
    places: dict[str, dict[str, None]] = {}
    for record, found in group.entries:
        name = name_of_record(record)
        sizes[name] = sizes.get(name, 0) + found.bytes
        places.setdefault(name, {})[_attribute(found)] = None
    first, explained = name_of_record(group.entries[0][0]), _attribute(group.entries[0][1])
    del sizes[first]
    if not sizes:
        return []

    def other(name: str, size: int) -> str:
        others = [place for place in places[name] if place and place != explained]
        return f"{name}, {format_bytes(size)}{' in ' * bool(others)}{', '.join(others)}"

    others = [other(*one) for one in sorted(sizes.items(), key=lambda one: -one[1])]
    shown = others[: MAX_ENTRIES_VERBOSE if every else _TESTS_SHOWN]
    lines: list[str] = []
    for name in shown:
        label = "" if lines else "also in"
        lines += wrap_name(name, width, indent=labelled(label, ""), further=f"{LABEL_INDENT}  ")
    if len(shown) < len(others):
        lines.append(labelled("", f"and {len(others) - len(shown)} more{'' if every else ' (-v shows all)'}"))
    return lines


def _attribute(found: Finding) -> str:
    """Return the root's attribute that leads to the memory: of an object with several, each takes an edit of its own."""
    holder = found.holder
    edge = holder.path[0].edge if holder is not None and holder.path else ""
    return clean_text(edge, TEXT_LIMIT) if edge.startswith(".") else ""


def _in_full(group: Group, verbosity: int, width: int) -> list[str]:
    return _safely(
        group,
        lambda found: [
            *render_largest(group),
            *render_finding(found, verbosity=verbosity, width=width),
            *render_totals(group, width=width, every=verbosity > 0),
        ],
    )


def _briefly(group: Group, _verbosity: int, width: int) -> list[str]:
    return _safely(
        group,
        lambda found: [
            *([] if group.is_shared else render_amount(found, width=width)),
            *render_briefly(found, width=width),
            *render_largest(group),
        ],
    )


def _in_a_line(group: Group, width: int) -> list[str]:
    def written(found: Finding) -> list[str]:
        owners = describe_owners(group) if group.is_shared else name_of_record(group.entries[0][0])
        indent = " " * (len(INDENT) + _SIZE_COLUMNS + 2)
        line = f"{INDENT}{format_bytes(group.bytes):>{_SIZE_COLUMNS}}  "
        room = width - len(indent)
        if found.holder is None:
            parts = [shorten_middle(render_line(found), room)]
        else:
            parts = [part.strip() for part in chain_lines(found.holder, room + len(labelled("", "")), "")]
        lines: list[str] = []
        for part in [*parts, f"in {shorten_middle(owners, room - 3)}"]:
            if lines and fits(f"{lines[-1]}  {part}", width):
                lines[-1] += f"  {part}"
            else:
                lines.append((indent if lines else line) + part)
        return lines

    return _safely(group, written)


def _safely(group: Group, write: Callable[[Finding], list[str]]) -> list[str]:
    record, found = group.entries[0]
    return isolated(lambda: write(found), lambda why: [INDENT + describe_unshown(record, found, why)])


def _judged_later(report: RunReport, width: int) -> list[str]:
    """Write a line for each place in a wider fixture that keeps as much as would fail, until its teardown is judged."""
    least = report.policy.get("retained_bytes")
    places: dict[str, dict[str, int]] = {}

    def add(record: TestRecord | FixtureRecord, found: Finding) -> None:
        if found.until_teardown and found.holder is not None and type(least) is int and found.bytes >= least:
            place = found.holder.root + "".join(step.edge for step in found.holder.path[:1])
            places.setdefault(clean_text(place, TEXT_LIMIT), {})[name_of_record(record)] = found.bytes

    for record, found in findings_of(report):
        isolated(functools.partial(add, record, found), lambda _: None)
    lines: list[str] = []
    for place, tests in places.items():
        more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
        line = (
            f"NOTED {format_bytes(max(tests.values()))} held by {place} until its teardown ({next(iter(tests))}{more})"
        )
        lines += wrap_text(line, width, further=INDENT)
    return [TitleLine(line) for line in lines[:MAX_ENTRIES]]


def _render_quietly(report: RunReport) -> list[str]:
    groups = group_safely(_failing(report))
    lines = [_line(group) for group in groups[:MAX_ENTRIES_VERBOSE]]
    if len(groups) > len(lines):
        lines.append(f"and {count_of(len(groups) - len(lines), 'more holder')}; the JSON report has them")
    return lines


def _line(group: Group) -> str:
    record, found = group.entries[0]

    def written() -> str:
        others = f" and {group.owners - 1} more, {format_bytes(group.bytes)} in all" if group.is_shared else ""
        return f"{name_of_record(record)}{others}: {render_line(found)}"

    return isolated(written, lambda why: describe_unshown(record, found, why))


def _failing(report: RunReport) -> list[Entry]:
    return [one for verdict, entries in _sections(report) if verdict == "leaked" for one in entries]


def _sections(report: RunReport) -> Iterator[tuple[str, Sequence[Entry]]]:
    sections: dict[str, list[Entry]] = {"leaked": [], "noted": [], "allowed": []}
    for test in report.tests:
        for found in test.findings if test.verdict in sections else ():
            # A test that leaks may have notes beside its leaks.
            sections[test.verdict if found.failed or test.verdict != "leaked" else "noted"].append((test, found))
    for fixture in report.fixtures:
        for found in fixture.findings:
            verdict = "leaked" if found.failed else "noted"
            sections[verdict if fixture.allowed is None else "allowed"].append((fixture, found))
    yield from sections.items()


def _titles(group: Group, verdict: str, width: int, *, every: bool) -> list[str]:
    record = group.entries[0][0]

    def part() -> list[str]:
        reason = f": {clean_text(record.allowed, TEXT_LIMIT)}" if record.allowed else ""
        known = verdict == "noted" and any(found.known for _, found in group.entries)
        word = "KNOWN" if known else verdict.upper()
        if not group.is_shared:
            return [f"{word} {name_of_record(record)}{_worker(record)}{reason}"]
        title = f"{word} {format_bytes(group.bytes)} in {describe_owners(group, MAX_ENTRIES_VERBOSE if every else FIXTURES_SHOWN)}{reason}"
        return wrap_text(title, width, further=INDENT)

    titles = isolated(part, lambda why: [f"{verdict.upper()} (a title that could not be shown: {why})"])
    return [TitleLine(line) for line in titles]


def _worker(record: TestRecord | FixtureRecord) -> str:
    return "" if record.worker == "main" else f" [{clean_text(record.worker, ID_LIMIT)}]"
