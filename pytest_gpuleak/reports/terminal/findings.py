"""Findings as plain lines for an 80-column CI log. A chain of holders is shortened to the width, a place never."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpuleak.model.text import clean_text, count_of, format_bytes, shorten_end, width_of, wrap_text
from pytest_gpuleak.reports.terminal.holders import chain_lines, held_by, held_lines, other_lines, place_of_edit
from pytest_gpuleak.reports.terminal.lines import (
    ID_LIMIT,
    INDENT,
    LABEL_INDENT,
    MIN_WIDTH,
    TEXT_LIMIT,
    CutLine,
    dimmed,
    fits,
    labelled,
    wrapped,
)
from pytest_gpuleak.reports.wording import CYCLE_UNKNOWN, LINE_UNKNOWN, describe_amount, describe_end, name_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.model.findings import ArrayInfo, Autograd, Contribution, Finding, Holder, Judged
    from pytest_gpuleak.model.source_files import Origin

_ARRAYS_SHOWN = 5  # with -v; the JSON report has more
_PARTS_SHOWN = 3
_LINES_SHOWN = 3  # creation lines
_MOST_SHOWN = 50  # creation lines, parts, figures and further holders, even with -v


def render_finding(finding: Finding, *, verbosity: int = 0, width: int = 80) -> list[str]:
    """Write one finding, indented: what leaked, who holds it, what to do, where it was created, and the details."""
    width = max(width, MIN_WIDTH)
    every = verbosity > 0
    lines = render_amount(finding, width=width) + _baseline_lines(finding, width)
    lines += _holder_lines(finding, width, every=every)
    if finding.hint:
        lines += wrapped("fix", _with_code(finding), width)
    if finding.metric is None:
        lines += _created(finding, width, every=every)
    lines += _parts(finding, width, every=every)
    details = _arrays(finding, _ARRAYS_SHOWN if every else 1)
    details += _graph(finding.autograd, width)
    for text in finding.evidence[:_MOST_SHOWN]:
        details += wrapped("figures", text, width)
    if finding.why_unconfirmed:
        details += wrapped("because", finding.why_unconfirmed, width)
    if finding.known and finding.baseline is None:
        details.append(labelled("known", "listed in the baseline"))
    if every and finding.judged is not None:
        details += wrapped("judged", _judged(finding.judged), width)
        for text in _not_done(finding, finding.judged):
            details += wrapped("not", text, width)
    return lines + dimmed(details)


def render_briefly(finding: Finding, *, width: int = 80) -> list[str]:
    """Write who holds it, what to do, and where it was created, in as few lines as that takes."""
    width = max(width, MIN_WIDTH)
    lines = _baseline_lines(finding, width)
    if finding.holder is not None:
        lines += [CutLine(line) for line in chain_lines(finding.holder, width, "held by")]
        place = place_of_edit(finding.edit)
        lines += [CutLine(labelled("cut at", place))] if place else []
    else:
        lines += _holder_lines(finding, width, every=False)
    if finding.process is not None:
        lines += wrapped("process", finding.process.text, width)
    if finding.hint:
        lines += wrapped("fix", _with_code(finding), width)
    if finding.metric is None:
        lines += _created(finding, width, every=False)[:1]
    return lines


def render_holders(holders: Sequence[Holder], autograd: Autograd | None, *, width: int = 80) -> list[str]:
    """Write the holders of one object, the first with the tree of its path, and what its autograd graph retains."""
    lines = held_lines(holders[0], width) + other_lines(holders[0], holders[1:], width) if holders else []
    return [type(line)(line.removeprefix(INDENT)) for line in lines + _graph(autograd, width)]


def render_short(finding: Finding) -> str:
    """Write one finding for a test's own report (longrepr, JUnit): what leaked, who holds it, where it was created."""
    origin = next((array.created for array in finding.tensors if array.created is not None), None)
    created = _place(origin) if origin else f"unknown: {clean_text(_why_no_line(finding), TEXT_LIMIT)}"
    fix = f"\nfix: {clean_text(_with_code(finding), TEXT_LIMIT)}" if finding.hint else ""
    if finding.metric is not None:
        held = "" if finding.holder is None else f"\nheld by {held_by(finding.holder)}"
        parts = [f"\n{_part(part)}" for part in finding.contributions[:_PARTS_SHOWN]]
        return f"{_what(finding)}{held}{_cut(finding)}{fix}{''.join(parts)}"
    if finding.kind == "cycle" and finding.holder is None:
        return _what(finding)
    return f"{_what(finding)}\nheld by {held_by(finding.holder)}{_cut(finding)}{fix}\ncreated {created}"


def _cut(finding: Finding) -> str:
    place = place_of_edit(finding.edit)
    return f"\ncut at {place}" if place else ""


def render_line(finding: Finding) -> str:
    """Write one finding as one line: what leaked and who holds it."""
    if finding.holder is None and finding.metric is not None:
        return f"{_what(finding)}{''.join(f', {_part(part)}' for part in finding.contributions[:1])}"
    if finding.kind == "cycle" and finding.holder is None:
        return _what(finding)
    return f"{_what(finding)}, held by {held_by(finding.holder)}"


def _what(finding: Finding) -> str:
    state = "" if finding.failed else " (known)" if finding.known else " (a note)"
    return f"{clean_text(finding.kind, ID_LIMIT)}{state}: {describe_amount(finding, ID_LIMIT)}"


def render_amount(finding: Finding, *, width: int = 80) -> list[str]:
    """Write how much leaked: ``growing: 2 tensors, 8.0 MiB on cuda:0; each run leaves 8.0 MiB more``."""
    return wrap_text(_what(finding), width, indent=INDENT, further=INDENT * 2)


def _baseline_lines(finding: Finding, width: int) -> list[str]:
    if finding.baseline is None:
        return []
    return wrap_text(clean_text(finding.baseline.line, TEXT_LIMIT), width, indent=INDENT, further=LABEL_INDENT)


def _holder_lines(finding: Finding, width: int, *, every: bool) -> list[str]:
    holder = finding.holder
    if holder is None and finding.metric is not None:
        return []
    if finding.kind == "cycle":
        if holder is None:
            return wrapped("cycle", CYCLE_UNKNOWN, width)
        end = f"{holder.path[0].type}, the first again" if holder.path else ""
        return held_lines(holder, width, label="cycle", end=end, every=every)
    lines = held_lines(holder, width, end=describe_end(finding), every=every)
    return lines + other_lines(holder, finding.other_holders[:_MOST_SHOWN], width)


def _created(finding: Finding, width: int, *, every: bool) -> list[str]:
    origins = list(dict.fromkeys(array.created for array in finding.tensors if array.created is not None))
    if not origins:
        known = finding.kind == "cycle" and finding.why_line_unknown is None
        return [] if known else wrapped("created", f"unknown: {_why_no_line(finding)}", width)
    lines: list[str] = []
    shown = origins[: _MOST_SHOWN if every else _LINES_SHOWN]
    for origin in shown:
        whole = labelled("" if lines and not every else "created", _place(origin))
        if fits(whole, width):
            lines.append(whole)
        elif lines and not every:
            place = labelled("", _place(origin, code=False))
            lines.append(shorten_end(whole, max(width, width_of(place))))
        else:  # the place on a line, the code below it
            lines.append(labelled("created", _place(origin, code=False)))
            if origin.code:
                lines.append(LABEL_INDENT + shorten_end(clean_text(origin.code, TEXT_LIMIT), width - len(LABEL_INDENT)))
    if len(shown) < len(origins):
        lines += dimmed([labelled("", f"and {count_of(len(origins) - len(shown), 'other line')}")])
    return lines


def _why_no_line(finding: Finding) -> str:
    return finding.why_line_unknown or LINE_UNKNOWN


def _parts(finding: Finding, width: int, *, every: bool) -> list[str]:
    lines: list[str] = []
    for part in finding.contributions[: _MOST_SHOWN if every else _PARTS_SHOWN]:
        lines += wrapped("part", _part(part), width)
        if part.holder is not None and part.holder != finding.holder:
            lines += held_lines(part.holder, width, end=part.text)
        if part.created is not None:
            lines += wrapped("created", _place(part.created), width)
    return lines


def _part(part: Contribution) -> str:
    count = f" ({part.count} x)" if part.count > 1 else ""
    sign = "-" if part.bytes < 0 else ""
    size = f"{sign}{format_bytes(abs(part.bytes))}: " if part.bytes else ""
    return f"{size}{clean_text(part.text, TEXT_LIMIT)}{count}"


def _judged(judged: Judged) -> str:
    freed = f"freed by {', '.join(judged.freed_by)}" if judged.freed_by else ""
    return "; ".join(filter(None, (judged.step, count_of(judged.runs, "run"), freed, judged.cut)))


def _not_done(finding: Finding, judged: Judged) -> list[str]:
    """Write what was not done and why, beyond what the lines of the holder, of the creation and `because` say."""
    rows = {
        "run again": "" if finding.why_unconfirmed else judged.why_not_again,
        "all of the heap searched": judged.search_cut,
        "known who holds it": judged.why_no_holder if _is_silent_on_holder(finding) else "",
        "known which line made it": judged.why_no_line if finding.metric is not None else "",
    }
    return [f"{what}: {why}" for what, why in rows.items() if why]


def _is_silent_on_holder(finding: Finding) -> bool:
    """Tell whether the lines of the holder say nothing of why it is not known."""
    holder = finding.holder
    return holder.kind == "native" if holder is not None else finding.metric is not None


def _graph(autograd: Autograd | None, width: int) -> list[str]:
    if autograd is None:
        return []
    if autograd.cut and not autograd.nodes:
        return wrapped(
            "graph", "the autograd graph could not be read, since another thread may have been using it", width
        )
    kept = "no memory"
    if autograd.saved_tensors:
        kept = f"{count_of(autograd.saved_tensors, 'saved tensor')}, {format_bytes(autograd.saved_bytes)},"
    nodes = count_of(autograd.nodes, "autograd node")
    retain = "retains" if autograd.nodes == 1 else "retain"
    retain += " at least" if autograd.cut else ""
    return wrapped("graph", f"{nodes} {retain} {kept} beyond these tensors", width)


def _place(origin: Origin, *, code: bool = True) -> str:
    function = f" in {clean_text(origin.function, ID_LIMIT)}" if origin.function else ""
    place = f"{clean_text(origin.file, ID_LIMIT)}:{origin.line}{function}"
    return f"{place}: {clean_text(origin.code, TEXT_LIMIT)}" if code and origin.code else place


def _arrays(finding: Finding, limit: int) -> list[str]:
    alike = Counter((name_array(array), _array(array), array.file) for array in finding.tensors)
    lines = []
    for (name, text, file), number in list(alike.items())[:limit]:
        lines.append(labelled(name, f"{number} x {text}" if number > 1 else text))
        lines += [labelled("file", clean_text(file, TEXT_LIMIT))] if file else []
    return lines


def _array(array: ArrayInfo) -> str:
    size = format_bytes(array.bytes)
    if array.storage_bytes != array.bytes:
        size += f" of a storage of {format_bytes(array.storage_bytes)}"
    return f"{clean_text(array.dtype, ID_LIMIT)} {clean_text(str(list(array.shape)), ID_LIMIT)}, {size}"


def _with_code(finding: Finding) -> str:
    return f"{finding.hint} ({clean_text(finding.code, ID_LIMIT)})" if finding.code else finding.hint or ""
