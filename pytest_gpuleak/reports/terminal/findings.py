"""Findings on the terminal: plain lines, readable in an 80-column CI log without colour.

The first lines of a finding tell what leaked, who holds it and where it was created. User text is cleaned and cut
(`ID_LIMIT`, `TEXT_LIMIT`). A chain of holders is shortened in its middle to fit the width; a place in a file never is.
"""

from __future__ import annotations

import itertools
import textwrap
from typing import TYPE_CHECKING

from pytest_gpuleak.model.text import clean_text, count_of, format_bytes, shorten_middle
from pytest_gpuleak.reports.terminal.summary import ID_LIMIT, INDENT, MIN_WIDTH, TEXT_LIMIT
from pytest_gpuleak.reports.wording import describe_amount, describe_holder, name_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.model.findings import ArrayInfo, Autograd, Contribution, Finding, Holder, Origin

_SHORT_CHAIN = 120  # JUnit and longrepr have no width; keep a line readable
_ARRAYS_SHOWN = 5  # with -v; the JSON report has more
_STEPS_SHOWN = 30
_PARTS_SHOWN = 3
_MOST_SHOWN = 50  # creation lines, parts, figures and further holders, even with -v
_CHAIN_END = 12  # shortest end of a chain worth showing beside its root, in characters
_LABEL_INDENT = " " * 11


def render_finding(finding: Finding, *, verbosity: int = 0, width: int = 80) -> list[str]:
    """Write one finding, indented: what leaked, who holds it, where it was created, then all else that is known."""
    width = max(width, MIN_WIDTH)
    lines = _what_lines(finding, width) + _baseline_lines(finding, width)
    if finding.holder is not None or finding.metric is None:
        lines += _held_lines(finding.holder, width)
    if finding.hint:
        lines += wrapped("fix", with_code(finding), width)
    if verbosity > 0 and finding.holder is not None:
        lines += _path(finding.holder, width)
    lines += _other_lines(finding, width)
    if finding.metric is None:
        lines += _created(finding, width, every=verbosity > 0)
    lines += _parts(finding, width, every=verbosity > 0)
    for text in finding.evidence[:_MOST_SHOWN]:
        lines += wrapped("figures", text, width)
    for array in finding.tensors[: _ARRAYS_SHOWN if verbosity > 0 else 1]:
        lines.append(labelled(name_array(array), _array(array)))
        lines += [labelled("file", clean_text(array.file, TEXT_LIMIT))] if array.file else []
    if finding.why_unconfirmed:
        lines += wrapped("because", finding.why_unconfirmed, width)
    lines += _graph(finding.autograd)
    if finding.known and finding.baseline is None:
        lines.append(labelled("known", "listed in the baseline"))
    return lines


def render_holders(holders: Sequence[Holder], autograd: Autograd | None, *, width: int = 80) -> list[str]:
    """Write the holders of one object, step by step, and what its autograd graph retains."""
    written = [
        _held_lines(holder, width, label="and by" if index else "held by") + _path(holder, width)
        for index, holder in enumerate(holders)
    ]
    first = [_held_lines(holders[0], width, label="and by") + _path(holders[0], width)] if holders else []
    lines = [*itertools.chain(*written[:1]), *_without_repeats(first, written[1:])]
    return [line.removeprefix(INDENT) for line in lines + _graph(autograd)]


def render_short(finding: Finding) -> str:
    """Write one finding for a test's own report (longrepr, JUnit): what leaked, who holds it, where it was created."""
    origin = next((array.created for array in finding.tensors if array.created is not None), None)
    created = _place(origin) if origin else "unknown"
    fix = f"\nfix: {clean_text(with_code(finding), TEXT_LIMIT)}" if finding.hint else ""
    if finding.metric is not None:
        parts = [f"\n{_part(part)}" for part in finding.contributions[:_PARTS_SHOWN]]
        return f"{_what(finding)}{fix}{''.join(parts)}"
    return f"{_what(finding)}\nheld by {_held_by(finding.holder)}{fix}\ncreated {created}"


def render_line(finding: Finding) -> str:
    """Write one finding as one line: what leaked and who holds it."""
    if finding.holder is None and finding.metric is not None:
        return f"{_what(finding)}{''.join(f', {_part(part)}' for part in finding.contributions[:1])}"
    return f"{_what(finding)}, held by {_held_by(finding.holder)}"


def _what(finding: Finding) -> str:
    state = "" if finding.failed else ", known" if finding.known else ", not failed"
    return f"{clean_text(finding.kind, ID_LIMIT)}{state}: {describe_amount(finding, ID_LIMIT)}"


def _what_lines(finding: Finding, width: int) -> list[str]:
    return textwrap.wrap(_what(finding), width, initial_indent=INDENT, subsequent_indent=INDENT * 2)


def _baseline_lines(finding: Finding, width: int) -> list[str]:
    if finding.baseline is None:
        return []
    line = INDENT + clean_text(finding.baseline.line, TEXT_LIMIT)
    return textwrap.wrap(line, width, subsequent_indent=_LABEL_INDENT, break_on_hyphens=False)


def _held_lines(holder: Holder | None, width: int, label: str = "held by") -> list[str]:
    if holder is None:
        return [labelled(label, _held_by(None))]
    whole = labelled(label, f"{_chain(holder, TEXT_LIMIT)}  ({_holder_kind(holder)})")
    if len(whole) <= width:
        return [whole]
    chain = _chain(holder, width - len(_LABEL_INDENT))
    return [labelled(label, chain), labelled("", f"({_holder_kind(holder)})")]


def _other_lines(finding: Finding, width: int) -> list[str]:
    first = [] if finding.holder is None else [_held_lines(finding.holder, width, label="and by")]
    others = [_held_lines(other, width, label="and by") for other in finding.other_holders[:_MOST_SHOWN]]
    return _without_repeats(first, others)


def _without_repeats(first: Sequence[list[str]], others: Sequence[list[str]]) -> list[str]:
    """Write each text once and count the rest: two entries of one cache read the same."""
    met = set(map(tuple, first))
    lines: list[str] = []
    repeated = 0
    for written in others:
        if tuple(written) in met:
            repeated += 1
        else:
            met.add(tuple(written))
            lines += written
    if repeated:
        holders = "holder" if len(met) == 1 else "holders"
        lines.append(labelled("and by", f"{count_of(repeated, 'further reference')} of the same {holders}"))
    return lines


def _held_by(holder: Holder | None) -> str:
    return "unknown (not searched)" if holder is None else f"{_chain(holder, _SHORT_CHAIN)}  ({_holder_kind(holder)})"


def _holder_kind(holder: Holder) -> str:
    if holder.file is None:
        return describe_holder(holder)
    line = "" if holder.line is None else f":{holder.line}"
    return f"{describe_holder(holder)}, {clean_text(holder.file, ID_LIMIT)}{line}"


def _chain(holder: Holder, width: int) -> str:
    """Write the chain from root to array. The root, which is what one edits, is cut last."""
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
        return [labelled("created", "unknown (recorded only during a re-run)")]
    lines: list[str] = []
    shown = origins[: _MOST_SHOWN if every else 1]
    for origin in shown:
        whole = labelled("created", _place(origin))
        if len(whole) <= width:
            lines.append(whole)
        else:  # the place on a line, the code below it
            lines.append(labelled("created", _place(origin, code=False)))
            lines += [labelled("", clean_text(origin.code, width - len(_LABEL_INDENT)))] if origin.code else []
    if len(shown) < len(origins):
        lines.append(labelled("", f"and {count_of(len(origins) - len(shown), 'other line')}"))
    return lines


def _parts(finding: Finding, width: int, *, every: bool) -> list[str]:
    """Write the parts of memory that no tensor explains: size, allocating line, holder."""
    lines: list[str] = []
    for part in finding.contributions[: _MOST_SHOWN if every else _PARTS_SHOWN]:
        lines += wrapped("of it", _part(part), width)
        if part.created is not None:
            lines += wrapped("created", _place(part.created), width)
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
    return [labelled("graph", f"{nodes} {'retains' if autograd.nodes == 1 else 'retain'} {kept}")]


def _place(origin: Origin, *, code: bool = True) -> str:
    function = f" in {clean_text(origin.function, ID_LIMIT)}" if origin.function else ""
    place = f"{clean_text(origin.file, ID_LIMIT)}:{origin.line}{function}"
    return f"{place}: {clean_text(origin.code, TEXT_LIMIT)}" if code and origin.code else place


def _array(array: ArrayInfo) -> str:
    size = format_bytes(array.bytes)
    if array.storage_bytes != array.bytes:
        size += f" of a storage of {format_bytes(array.storage_bytes)}"
    return f"{clean_text(array.dtype, ID_LIMIT)} {clean_text(str(list(array.shape)), ID_LIMIT)}, {size}"


def with_code(finding: Finding) -> str:
    """Write a finding's hint with its code behind it."""
    return f"{finding.hint} ({clean_text(finding.code, ID_LIMIT)})" if finding.code else finding.hint or ""


def wrapped(label: str, text: str, width: int) -> list[str]:
    """Write cleaned and cut text behind its label, wrapped to the width."""
    line = labelled(label, clean_text(text, TEXT_LIMIT))
    return textwrap.wrap(line, width, subsequent_indent=_LABEL_INDENT, break_on_hyphens=False)


def labelled(label: str, text: str) -> str:
    """Write one line with its label; a continuation line has none."""
    return f"{INDENT}{label:<7}  {text}"
