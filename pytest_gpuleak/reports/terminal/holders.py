"""Holders on the terminal: the root, and the path from it as an indented tree with the reference to cut marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuleak.model.text import clean_text, count_of, shorten_middle, width_of
from pytest_gpuleak.reports.terminal.lines import (
    ID_LIMIT,
    LABEL_INDENT,
    TEXT_LIMIT,
    CutLine,
    DimLine,
    dimmed,
    fits,
    labelled,
    wrap_name,
    wrapped,
)
from pytest_gpuleak.reports.wording import GONE, describe_holder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.model.findings import Holder
    from pytest_gpuleak.model.source_files import Edit

CUT_HERE: Final = "  <- cut here"

_SHORT_CHAIN: Final = 120  # JUnit and longrepr have no width; keep a line readable
_CHAIN_END: Final = 12  # shortest end of a chain worth showing beside its root, in columns
_STEPS_AT_ENDS: Final = 4  # of a path longer than twice this; with -v `_STEPS_SHOWN`
_STEPS_SHOWN: Final = 30
_DEEPEST: Final = 10  # levels that a line is indented by at most


def held_lines(
    holder: Holder | None, width: int, *, label: str = "held by", end: str = "", every: bool = False
) -> list[str]:
    """Write a holder: on a line where its path is one reference at most, else as the tree of its path to `end`."""
    if holder is None:
        return [labelled(label, GONE)]
    if len(holder.path) < (1 if every else 2):
        return [CutLine(line) for line in [*chain_lines(holder, width, label), *_place_to_edit(holder)]]
    head = _with_place(label, clean_text(_heading(holder), TEXT_LIMIT), _whereabouts(holder), width)
    lines: list[str] = head
    if holder.deciding is None:
        lines = [CutLine(line) for line in [*head, *_place_to_edit(holder)]]
    return [*lines, *_path_lines(holder, width, end=end, every=every)]


def chain_lines(holder: Holder, width: int, label: str) -> list[str]:
    """Write a holder with its whole chain: on a line, or with its place on a second."""
    whole = labelled(label, f"{_chain(holder, TEXT_LIMIT)}  ({_whereabouts(holder)})")
    if fits(whole, width):
        return [whole]
    named = wrap_name(_chain(holder, TEXT_LIMIT), width, indent=labelled(label, ""), further=LABEL_INDENT)
    return [*named, labelled("", f"({_whereabouts(holder)})")]


def _path_lines(holder: Holder, width: int, *, end: str = "", every: bool = False) -> list[str]:
    path = holder.path
    targets = [step.type for step in path[1:]] + [end]
    lines: list[str] = []
    depth = 0
    left_out = 0
    for index, (step, target) in enumerate(zip(path, targets, strict=True)):
        if not _is_shown(index, len(path), holder.deciding, every=every):
            left_out += 1
            continue
        if left_out:
            lines.append(DimLine(_indented(depth, f"... {count_of(left_out, 'reference')} more ...")))
            depth, left_out = depth + 1, 0
        edge, kind = clean_text(step.edge.strip(": "), TEXT_LIMIT), clean_text(target, ID_LIMIT)
        if index == holder.deciding:
            lines += [CutLine(line) for line in _cut_lines(_indented(depth, ""), edge, kind, holder, width)]
        else:
            lines += dimmed(_step_lines(_indented(depth, ""), edge, kind, width))
        depth += 1
    if left_out:
        lines.append(DimLine(_indented(depth, f"... {count_of(left_out, 'reference')} more")))
    return lines


def other_lines(first: Holder | None, others: Sequence[Holder], width: int) -> list[str]:
    """Write further holders, each text once and the rest as a count: two entries of one cache read the same."""
    met = set() if first is None else {tuple(chain_lines(first, width, "and by"))}
    lines: list[str] = []
    repeated = 0
    for other in others:
        written = chain_lines(other, width, "and by")
        if tuple(written) in met:
            repeated += 1
        else:
            met.add(tuple(written))
            lines += written
    if repeated:
        holders = "holder" if len(met) == 1 else "holders"
        lines += dimmed([labelled("and by", f"{count_of(repeated, 'further reference')} of the same {holders}")])
    return lines


def held_by(holder: Holder | None) -> str:
    """Write a holder for a line without a width: ``app.HISTORY[0]  (module global, app.py:3)``."""
    return GONE if holder is None else f"{_chain(holder, _SHORT_CHAIN)}  ({_whereabouts(holder)})"


def place_of_root(holder: Holder) -> str:
    """Write where a root is defined: ``app/metrics.py:17``; empty where that is not known."""
    return "" if holder.file is None else _place(holder.file, holder.line)


def place_of_edit(edit: Edit | None) -> str:
    """Write where the line to cut is: ``app/loop.py:40``; empty where that is not known."""
    return "" if edit is None else _place(edit.file, edit.line)


def _step_lines(indent: str, edge: str, kind: str, width: int) -> list[str]:
    """Write a reference and the type that it leads to."""
    return wrap_name(f"{edge}: {kind}" if kind else edge, width, indent=indent, further=f"{indent}  ")


def _cut_lines(indent: str, edge: str, kind: str, holder: Holder, width: int) -> list[str]:
    known = place_of_edit(holder.edit)
    place = f", at {known}" if known else ""
    lines = _step_lines(indent, edge, kind, width)
    if fits(lines[-1] + CUT_HERE + place, width):
        return [*lines[:-1], lines[-1] + CUT_HERE + place]
    if fits(lines[-1] + CUT_HERE, width):
        lines[-1] += CUT_HERE
    else:
        lines.append(f"{indent}  {CUT_HERE.strip()}")
    return [*lines, f"{indent}  {place.removeprefix(', ')}"] if place else lines


def _place_to_edit(holder: Holder) -> list[str]:
    place = place_of_edit(holder.edit)
    return [labelled("", f"{CUT_HERE.strip()}, at {place}")] if place else []


def _is_shown(index: int, count: int, deciding: int | None, *, every: bool) -> bool:
    if every:
        return index < _STEPS_SHOWN or index == deciding
    return count <= 2 * _STEPS_AT_ENDS or index < _STEPS_AT_ENDS or index >= count - _STEPS_AT_ENDS or index == deciding


def _indented(depth: int, text: str) -> str:
    return f"{LABEL_INDENT}{'  ' * (1 + min(depth, _DEEPEST))}{text}"


def _heading(holder: Holder) -> str:
    """Return the beginning of a holder's text, before its path: the root, and where it has no name what it leads to."""
    edges = [step.edge for step in holder.path]
    whole = "".join(edges)
    if holder.text.endswith(whole) and len(holder.text) > len(whole):
        return holder.text[: -len(whole)]
    position = holder.text.find("".join(edges[:_STEPS_AT_ENDS]))
    return holder.text[:position] if position > 0 else holder.root or "no root"


def _with_place(label: str, text: str, place: str, width: int) -> list[str]:
    whole = labelled(label, f"{text}  ({place})")
    if fits(whole, width):
        return [whole]
    named = labelled(label, text)
    if " " in text and not fits(named, width):  # words, which can be wrapped
        return [*wrapped(label, text, width), labelled("", f"({place})")]
    return [*wrap_name(text, width, indent=labelled(label, ""), further=LABEL_INDENT), labelled("", f"({place})")]


def _whereabouts(holder: Holder) -> str:
    place = place_of_root(holder)
    return f"{describe_holder(holder)}, {place}" if place else describe_holder(holder)


def _place(file: str, line: int | None) -> str:
    return clean_text(file, ID_LIMIT) + ("" if line is None else f":{line}")


def _chain(holder: Holder, width: int) -> str:
    """Write the chain from root to array. The root, which is what one edits, is cut last."""
    chain = clean_text(holder.text or holder.root or "nothing that the gc module shows", TEXT_LIMIT)
    root = clean_text(holder.root, TEXT_LIMIT)
    room = width - width_of(root)
    if not fits(chain, width) and root and chain.startswith(root) and room > _CHAIN_END:
        return root + shorten_middle(chain[len(root) :], room)
    return shorten_middle(chain, width)
