"""The terminal report: plain lines of text, read in an 80-column CI log without colour.

Each finding says in its first lines what leaked, who holds it and where it was created. Whatever comes from the user
is cleaned and cut (`ID_LIMIT`, `TEXT_LIMIT`); a chain of holders is shortened in its middle to fit the width, while a
place in a file is never cut by it.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from pytest_gpuleak.reports.standing import is_standing
from pytest_gpuleak.reports.terminal_summary import ID_LIMIT, INDENT, MIN_WIDTH, TEXT_LIMIT
from pytest_gpuleak.reports.text import clean_text, count_of, format_bytes, shorten_middle
from pytest_gpuleak.reports.words import HOLDER_WORDS, describe_amount

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuleak.findings import ArrayInfo, Autograd, Contribution, Finding, FixtureRecord, Holder, Origin
    from pytest_gpuleak.records import RunReport, TestRecord

_SHORT_CHAIN = 120  # JUnit and longrepr have no columns; a line in them should still be one
_ARRAYS_SHOWN = 5  # with -v; the JSON report has more
_STEPS_SHOWN = 30
_TESTS_SHOWN = 3
_PARTS_SHOWN = 3
_CHAIN_END = 12  # characters that the end of a chain takes to be worth showing beside its root
_LABEL_INDENT = " " * 11


def render_leaks(report: RunReport, *, verbosity: int, width: int) -> list[str]:
    """Write the lines below the title ``GPU LEAKS``; none where there is nothing to show.

    What failed is explained; from verbosity 1 up (``-v``) also what was noted or allowed, and each holder's path step
    by step. At -1 (``-q``) each failed finding takes one line, below that none. A culprit met again (the same
    fingerprint) is referred to.
    """
    if verbosity < 0:
        titled = _titled(report, verbose=False) if verbosity == -1 else ()
        return [
            f"{name}: {render_line(found)}" for _, name, record in titled for found in record.findings if found.failed
        ]
    width = max(width, MIN_WIDTH)
    lines: list[str] = []
    entries = [
        (title, name, finding)
        for title, name, record in _titled(report, verbose=verbosity > 0)
        for finding in record.findings
        if finding.failed or verbosity > 0
    ]
    met: dict[tuple[str, ...], list[str]] = {}
    for title, name, finding in entries:
        met.setdefault(_culprit(finding, title), []).append(name)
    above = ""
    for title, name, finding in entries:
        names = met.pop(_culprit(finding, title), None)
        if names is None:
            continue  # explained above
        if title != above:
            lines += ["", title] if lines else [title]
            above = title
        lines += render_finding(finding, verbosity=verbosity, width=width)
        more = list(dict.fromkeys(other for other in names if other != name))
        if more:
            lines += _also_in(more, width, every=verbosity > 0)
    return lines


def render_finding(finding: Finding, *, verbosity: int = 0, width: int = 80) -> list[str]:
    """Write one finding: what leaked, who holds it, where it was created, then what else is known, indented."""
    width = max(width, MIN_WIDTH)
    lines = _what_lines(finding, width) + _baseline_lines(finding, width)
    if finding.holder is not None or finding.metric is None:
        lines += _held_lines(finding.holder, width)
    if finding.hint:
        lines += _wrapped("fix", finding.hint, width)
    if verbosity > 0 and finding.holder is not None:
        lines += _path(finding.holder, width)
    for other in finding.other_holders:
        lines += _held_lines(other, width, label="and by")
    if finding.metric is None:
        lines += _created(finding, width, every=verbosity > 0)
    lines += _parts(finding, width, every=verbosity > 0)
    for text in finding.evidence:
        if not is_standing(text):
            lines += _wrapped("figures", text, width)
    lines += [_labelled("tensor", _array(array)) for array in finding.tensors[: _ARRAYS_SHOWN if verbosity > 0 else 1]]
    if finding.why_unconfirmed:
        lines += _wrapped("because", finding.why_unconfirmed, width)
    lines += _graph(finding.autograd)
    if finding.known and not any(map(is_standing, finding.evidence)):
        lines.append(_labelled("known", "listed in the baseline"))
    return lines


def render_holders(holders: Sequence[Holder], autograd: Autograd | None, *, width: int = 80) -> list[str]:
    """Write the holders of one object, step by step, and what its autograd graph retains."""
    lines: list[str] = []
    for index, holder in enumerate(holders):
        lines += _held_lines(holder, width, label="and by" if index else "held by") + _path(holder, width)
    return [line.removeprefix(INDENT) for line in lines + _graph(autograd)]


def render_short(finding: Finding) -> str:
    """Write one finding for a test's own report (its longrepr, JUnit): what leaked, who holds it, where created."""
    origin = next((array.created for array in finding.tensors if array.created is not None), None)
    created = _place(origin) if origin else "unknown"
    fix = f"\nfix: {clean_text(finding.hint, TEXT_LIMIT)}" if finding.hint else ""
    if finding.metric is not None:
        parts = [f"\n{_part(part)}" for part in finding.contributions[:_PARTS_SHOWN]]
        return f"{_what(finding)}{fix}{''.join(parts)}"
    return f"{_what(finding)}\nheld by {_held_by(finding.holder)}{fix}\ncreated {created}"


def render_line(finding: Finding) -> str:
    """Write one finding as one line: what leaked and who holds it."""
    if finding.holder is None and finding.metric is not None:
        return f"{_what(finding)}{''.join(f', {_part(part)}' for part in finding.contributions[:1])}"
    return f"{_what(finding)}, held by {_held_by(finding.holder)}"


def _titled(report: RunReport, *, verbose: bool) -> Iterable[tuple[str, str, TestRecord | FixtureRecord]]:
    """Yield what is to be shown, failures first, each with its title and its shorter name."""
    titled: list[tuple[str, str, str, TestRecord | FixtureRecord]] = []
    for test in report.tests:
        titled.append((test.verdict, clean_text(test.nodeid, ID_LIMIT), "", test))
    for fixture in report.fixtures:
        place = clean_text(fixture.baseid if fixture.file is None else fixture.file, ID_LIMIT)
        if fixture.line is not None and fixture.file is not None:
            place += f":{fixture.line}"
        verdict = "leaked" if any(finding.failed for finding in fixture.findings) else "noted"
        name = f"fixture '{clean_text(fixture.name, ID_LIMIT)}'"
        where = f" ({fixture.scope} scope, {place})" if place else f" ({fixture.scope} scope)"
        titled.append((verdict if fixture.allowed is None else "allowed", name, where, fixture))
    for verdict in ("leaked", "noted", "allowed") if verbose else ("leaked",):
        for its_verdict, name, where, record in titled:
            if its_verdict == verdict:
                worker = "" if record.worker == "main" else f" [{clean_text(record.worker, ID_LIMIT)}]"
                reason = f": {clean_text(record.allowed, TEXT_LIMIT)}" if record.allowed else ""
                known = verdict == "noted" and any(finding.known for finding in record.findings)
                word = "KNOWN" if known else verdict.upper()
                yield f"{word} {name}{where}{worker}{reason}", f"{name}{where}", record


def _what(finding: Finding) -> str:
    kind = finding.kind if finding.failed else f"{finding.kind}, {'known' if finding.known else 'not failed'}"
    return f"{kind}: {describe_amount(finding, ID_LIMIT)}"


def _what_lines(finding: Finding, width: int) -> list[str]:
    return textwrap.wrap(_what(finding), width, initial_indent=INDENT, subsequent_indent=INDENT * 2)


def _culprit(finding: Finding, title: str) -> tuple[str, ...]:
    """What findings have in common that are explained once."""
    if finding.holder is None or finding.holder.kind == "unknown" or not (finding.holder.path or _is_place(finding)):
        return finding.kind, title  # two that are held by nobody known need not be the same
    # With the root: a fingerprint has no digits, and `app.layer1` is not `app.layer2`.
    return finding.kind, finding.device, finding.fingerprint, finding.holder.root


def _is_place(finding: Finding) -> bool:
    return finding.holder is not None and finding.holder.kind != "native"


def _also_in(names: list[str], width: int, *, every: bool) -> list[str]:
    """Write the other tests and fixtures that met a culprit."""
    shown = names if every else names[:_TESTS_SHOWN]
    lines = [_labelled("also in", f"{len(names)} more:" if len(names) > 1 else shown[0])]
    if len(names) > 1:
        lines += [_labelled("", name) for name in shown]
    if len(shown) < len(names):
        lines.append(_labelled("", f"and {len(names) - len(shown)} more (-v shows all)"))
    return [line if len(line) <= width else shorten_middle(line, width) for line in lines]


def _baseline_lines(finding: Finding, width: int) -> list[str]:
    """Write what a baseline says of a finding, above all else: whether it needs to be read."""
    lines: list[str] = []
    for text in filter(is_standing, finding.evidence):
        line = INDENT + clean_text(text, TEXT_LIMIT)
        lines += textwrap.wrap(line, width, subsequent_indent=_LABEL_INDENT, break_on_hyphens=False)
    return lines


def _held_lines(holder: Holder | None, width: int, label: str = "held by") -> list[str]:
    if holder is None:
        return [_labelled(label, _held_by(None))]
    whole = _labelled(label, f"{_chain(holder, TEXT_LIMIT)}  ({_holder_kind(holder)})")
    if len(whole) <= width:
        return [whole]
    chain = _chain(holder, width - len(_LABEL_INDENT))
    return [_labelled(label, chain), _labelled("", f"({_holder_kind(holder)})")]


def _held_by(holder: Holder | None) -> str:
    return "unknown (not searched)" if holder is None else f"{_chain(holder, _SHORT_CHAIN)}  ({_holder_kind(holder)})"


def _holder_kind(holder: Holder) -> str:
    if holder.file is None:
        return HOLDER_WORDS[holder.kind]
    line = "" if holder.line is None else f":{holder.line}"
    return f"{HOLDER_WORDS[holder.kind]}, {clean_text(holder.file, ID_LIMIT)}{line}"


def _chain(holder: Holder, width: int) -> str:
    """Write the chain from the root to the array; the root, which is what one edits, is the last to be cut."""
    chain = clean_text(holder.text or holder.root or "nothing that the gc module shows", TEXT_LIMIT)
    root = clean_text(holder.root, TEXT_LIMIT)
    room = width - len(root)
    if len(chain) > width and root and chain.startswith(root) and room > _CHAIN_END:
        return root + shorten_middle(chain[len(root) :], room)
    return shorten_middle(chain, width)


def _path(holder: Holder, width: int) -> list[str]:
    steps = [
        f"{_LABEL_INDENT}{clean_text(step.edge, TEXT_LIMIT)}  of a {clean_text(step.type, TEXT_LIMIT)}"
        f"{'  <- here' if index == holder.deciding else ''}"
        for index, step in enumerate(holder.path[:_STEPS_SHOWN])
    ]
    if len(holder.path) > _STEPS_SHOWN:
        steps.append(f"{_LABEL_INDENT}and {len(holder.path) - _STEPS_SHOWN} more")
    return [shorten_middle(step, width) for step in steps]


def _created(finding: Finding, width: int, *, every: bool) -> list[str]:
    origins = list(dict.fromkeys(array.created for array in finding.tensors if array.created is not None))
    if not origins:
        return [_labelled("created", "unknown (lines are noted while a test runs again)")]
    lines: list[str] = []
    for origin in origins if every else origins[:1]:
        whole = _labelled("created", _place(origin))
        if len(whole) <= width:
            lines.append(whole)
        else:  # the place on a line, the code below it
            lines.append(_labelled("created", _place(origin, code=False)))
            lines += [_labelled("", clean_text(origin.code, width - len(_LABEL_INDENT)))] if origin.code else []
    if not every and len(origins) > 1:
        lines.append(_labelled("", f"and {count_of(len(origins) - 1, 'other line')}"))
    return lines


def _parts(finding: Finding, width: int, *, every: bool) -> list[str]:
    """Write what memory consists of that is no tensor's: each part, the line that allocated it, and who holds it."""
    lines: list[str] = []
    for part in finding.contributions if every else finding.contributions[:_PARTS_SHOWN]:
        lines += _wrapped("of it", _part(part), width)
        if part.created is not None:
            lines += _wrapped("created", _place(part.created), width)
        if part.holder is not None and part.holder != finding.holder:
            lines += _held_lines(part.holder, width)
    return lines


def _part(part: Contribution) -> str:
    count = f" ({part.count} x)" if part.count > 1 else ""
    sign = "-" if part.bytes < 0 else ""
    size = f"{sign}{format_bytes(abs(part.bytes))}: " if part.bytes else ""
    return f"{size}{clean_text(part.text, TEXT_LIMIT)}{count}"


def _graph(autograd: Autograd | None) -> list[str]:
    if autograd is None:
        return []
    kept = "no memory beyond these tensors"
    if autograd.saved_tensors:
        kept = f"{count_of(autograd.saved_tensors, 'saved tensor')}, {format_bytes(autograd.saved_bytes)}"
    nodes = count_of(autograd.nodes, "autograd node")
    return [_labelled("graph", f"{nodes} {'retains' if autograd.nodes == 1 else 'retain'} {kept}")]


def _place(origin: Origin, *, code: bool = True) -> str:
    place = f"{clean_text(origin.file, ID_LIMIT)}:{origin.line} in {clean_text(origin.function, ID_LIMIT)}"
    return f"{place}: {clean_text(origin.code, TEXT_LIMIT)}" if code and origin.code else place


def _array(array: ArrayInfo) -> str:
    size = format_bytes(array.bytes)
    if array.storage_bytes != array.bytes:
        size += f" of a storage of {format_bytes(array.storage_bytes)}"
    return f"{clean_text(array.dtype, ID_LIMIT)} {clean_text(str(list(array.shape)), ID_LIMIT)}, {size}"


def _wrapped(label: str, text: str, width: int) -> list[str]:
    line = _labelled(label, clean_text(text, TEXT_LIMIT))
    return textwrap.wrap(line, width, subsequent_indent=_LABEL_INDENT, break_on_hyphens=False)


def _labelled(label: str, text: str) -> str:
    return f"{INDENT}{label:<7}  {text}"
