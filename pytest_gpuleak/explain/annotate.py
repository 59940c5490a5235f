"""Complete a finding for the reader: short paths, the reference to edit, the hint."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.model.findings import ArrayInfo, Contribution, Finding, Holder


def annotate(finding: Finding, why_unconfirmed: str, shorten: Callable[[str], str]) -> Finding:
    """Return the finding as it is reported."""
    if finding.kind == "cycle" and finding.holder is None:
        return finding  # it has no place and no line
    # Only now, since findings of cycles do not need it.
    from pytest_gpuleak.explain.hints.order import advice_for

    finding = dataclasses.replace(
        finding,
        holder=None if finding.holder is None else _with_place(finding.holder, shorten),
        contributions=tuple(_with_short_place(part, shorten) for part in finding.contributions),
        other_holders=tuple(_with_place(other, shorten) for other in finding.other_holders),
        tensors=tuple(_with_short_path(array, shorten) for array in finding.tensors),
        why_unconfirmed=finding.why_unconfirmed or (why_unconfirmed or None if finding.kind == "unconfirmed" else None),
    )
    advice = None if finding.hint else advice_for(finding)
    return finding if advice is None else dataclasses.replace(finding, hint=advice.hint, code=advice.code)


def _with_place(holder: Holder, shorten: Callable[[str], str]) -> Holder:
    from pytest_gpuleak.explain.edge_to_edit import edge_to_edit

    file = None if holder.file is None else shorten(holder.file)
    return dataclasses.replace(holder, file=file, deciding=edge_to_edit(holder))


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
