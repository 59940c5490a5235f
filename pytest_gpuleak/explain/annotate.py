"""Complete a finding for the reader: short paths, the reference to edit, the hint."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.model.findings import ArrayInfo, Contribution, Finding, Holder

_ATTRIBUTE = re.compile(r"\.[^\W\d]\w*")


def annotate(
    finding: Finding, why_unconfirmed: str, shorten: Callable[[str], str], why_line_unknown: str = ""
) -> Finding:
    """Return the finding as it is reported.

    `why_line_unknown` says why a line that created an array is not known, where none is.
    """
    if finding.kind == "cycle" and finding.holder is None:
        return finding  # it has no place and no line
    if finding.metric is None and finding.kind != "cycle" and not any(array.created for array in finding.tensors):
        finding = dataclasses.replace(finding, why_line_unknown=why_line_unknown or None)
    # Only now, since findings of cycles need neither.
    from pytest_gpuleak.explain.cycle_hint import hint_for_cycle
    from pytest_gpuleak.explain.hints.order import advice_for

    finding = dataclasses.replace(
        finding,
        holder=None if finding.holder is None else _with_place(finding.holder, shorten),
        contributions=tuple(_with_short_place(part, shorten) for part in finding.contributions),
        other_holders=tuple(_with_place(other, shorten) for other in finding.other_holders),
        tensors=tuple(_with_short_path(array, shorten) for array in finding.tensors),
        why_unconfirmed=finding.why_unconfirmed or (why_unconfirmed or None if finding.kind == "unconfirmed" else None),
    )
    if finding.kind == "cycle" and finding.holder is not None:
        return dataclasses.replace(finding, hint=finding.hint or hint_for_cycle(finding.holder))
    advice = None if finding.hint else advice_for(finding)
    return finding if advice is None else dataclasses.replace(finding, hint=advice.hint, code=advice.code)


def _with_place(holder: Holder, shorten: Callable[[str], str]) -> Holder:
    from pytest_gpuleak.explain.edge_to_edit import edge_to_edit

    file = None if holder.file is None else shorten(holder.file)
    holder = dataclasses.replace(holder, file=file, deciding=edge_to_edit(holder))
    step = None if holder.deciding is None else holder.path[holder.deciding]
    set_in, line = holder.edit_file, holder.edit_line
    if set_in is None:
        set_in, line = (None, None) if step is None else _where_set(step.type, step.edge)
    return holder if set_in is None else dataclasses.replace(holder, edit_file=shorten(set_in), edit_line=line)


@functools.lru_cache(maxsize=256)
def _where_set(label: str, edge: str) -> tuple[str | None, int | None]:
    """Return the line that sets an attribute of a user's class; nothing for any other reference."""
    from pytest_gpuleak.explain.definitions import Places
    from pytest_gpuleak.heap.safe_access import loaded_module

    module, name = label, ""
    while _ATTRIBUTE.fullmatch(edge) and "." in module and " " not in label:
        module, _, last = module.rpartition(".")
        name = f"{last}.{name}" if name else last
        if loaded_module(module) is not None:
            return Places().of_attribute(module, name, edge[1:])
    return None, None


def _with_short_place(part: Contribution, shorten: Callable[[str], str]) -> Contribution:
    created, holder = part.created, part.holder
    return dataclasses.replace(
        part,
        created=None if created is None else dataclasses.replace(created, file=shorten(created.file)),
        holder=None if holder is None else _with_place(holder, shorten),
    )


def _with_short_path(array: ArrayInfo, shorten: Callable[[str], str]) -> ArrayInfo:
    if array.created is None:
        return array
    return dataclasses.replace(array, created=dataclasses.replace(array.created, file=shorten(array.created.file)))
