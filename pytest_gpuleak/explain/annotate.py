"""Complete a finding for the reader: short paths, the reference to edit, the hint."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_gpuleak.model.findings import ArrayInfo, Contribution, Finding, Holder

_ATTRIBUTE: Final = re.compile(r"\.[^\W\d]\w*")
_CONTAINER: Final = re.compile(r"\.?[^\W\d]\w*|\['[^\W\d]\w*'\]")
_VARIABLE: Final = re.compile(r"(?:closure variable|default of argument) '(?P<name>\w+)' of ")
_FILES_SEARCHED: Final = 4


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

    grows_at = None if finding.holder is None else finding.holder.deciding
    files = tuple(dict.fromkeys(array.created.file for array in finding.tensors if array.created is not None))
    finding = dataclasses.replace(
        finding,
        holder=None if finding.holder is None else _with_place(finding.holder, shorten, files),
        contributions=tuple(_with_short_place(part, shorten) for part in finding.contributions),
        other_holders=tuple(_with_place(other, shorten) for other in finding.other_holders),
        tensors=tuple(_with_short_path(array, shorten) for array in finding.tensors),
        why_unconfirmed=finding.why_unconfirmed or (why_unconfirmed or None if finding.kind == "unconfirmed" else None),
    )
    if finding.kind == "cycle" and finding.holder is not None:
        return dataclasses.replace(finding, hint=finding.hint or hint_for_cycle(finding.holder))
    advice = None if finding.hint else advice_for(finding, grows_at)
    return finding if advice is None else dataclasses.replace(finding, hint=advice.hint, code=advice.code)


def _with_place(holder: Holder, shorten: Callable[[str], str], created_in: Sequence[str] = ()) -> Holder:
    """Complete a holder with the reference to edit, and the line that sets it, where that is known.

    `created_in` are files that may set it, beside the one that defines the root.
    """
    from pytest_gpuleak.explain.edge_to_edit import edge_to_edit, is_edited_as_a_whole

    # The place of a hook, if there is one, is known; it goes with that reference.
    known = holder.deciding is not None and holder.edit_file is None and not is_edited_as_a_whole(holder)
    deciding = holder.deciding if known else edge_to_edit(holder)
    files = [file for file in (holder.file, *created_in) if file is not None]
    set_in, line = holder.edit_file, holder.edit_line
    if set_in is None:
        set_in, line = _where_edited(holder, deciding, files[:_FILES_SEARCHED])
    return dataclasses.replace(
        holder,
        file=None if holder.file is None else shorten(holder.file),
        deciding=deciding,
        edit_file=None if set_in is None else shorten(set_in),
        edit_line=line,
    )


def _where_edited(holder: Holder, deciding: int | None, files: Sequence[str]) -> tuple[str | None, int | None]:
    from pytest_gpuleak.explain.source_lines import line_of_adding, line_of_registration

    if deciding is None:
        return _first_line(files, lambda file: line_of_registration(file, holder.root))
    step = holder.path[deciding]
    if not step.edge.startswith((" (item of", "[")):
        return _where_set(step.type, step.edge)
    if deciding == 0:
        container = holder.root.rpartition(".")[2]
        container = f".{container}" if holder.kind == "class" else container
    else:
        before = holder.path[deciding - 1]
        variable = _VARIABLE.match(before.type)
        container = before.edge if variable is None else variable["name"]
    if _CONTAINER.fullmatch(container) is None:
        return None, None
    owners = (_file_of(before.type) for before in holder.path[:deciding])
    return _first_line(dict.fromkeys(filter(None, (*files, *owners))), lambda file: line_of_adding(file, container))


def _file_of(label: str) -> str | None:
    """Return the file of a class's module."""
    from pytest_gpuleak.heap import safe_access

    module = label.rpartition(".")[0]
    namespace = safe_access.module_dict(safe_access.loaded_module(module)) if module and " " not in module else None
    file = None if namespace is None else safe_access.plain_text(namespace.get("__file__"))
    return file if file is not None and file.endswith(".py") else None


def _first_line(files: Iterable[str], find: Callable[[str], int | None]) -> tuple[str | None, int | None]:
    for file in files:
        line = find(file)
        if line is not None:
            return file, line
    return None, None


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
