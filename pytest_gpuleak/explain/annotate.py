"""Complete a finding for the reader: short paths, the reference to edit, the hint."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.creation_lines import code_at
from pytest_gpuleak.explain.edge_to_edit import (
    FIXED,
    KEEPS_KEY,
    edge_to_edit,
    first_wrapper,
    is_edited_as_a_whole,
    is_of_class,
    is_users,
)
from pytest_gpuleak.model.findings import PathStep
from pytest_gpuleak.model.source_files import is_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_gpuleak.model.findings import Finding, Holder
    from pytest_gpuleak.model.source_files import Origin

_ATTRIBUTE: Final = re.compile(r"\.[^\W\d]\w*")
_CONTAINER: Final = re.compile(r"\.?[^\W\d]\w*|\['[^\W\d]\w*'\]")
_VARIABLE: Final = re.compile(r"(?:closure variable|default of argument) '(?P<name>\w+)' of ")
_FIXTURE: Final = re.compile(r"fixture '(?P<name>\w+)'")
_FILES_SEARCHED: Final = 4

_WORDS: Final = (
    (" (after the `yield` of a fixture)", ""),
    (", or mark the test with `allow_gpu_leak` if it is meant to stay", ""),
    (" (in `tearDownClass` or `teardown_class` for a class of tests)", ""),
    (" (`addCleanup(patcher.stop)`)", ""),
    ("do so in teardown", "do so when it is no longer needed (`del`, or `= None`)"),
    ("take out in teardown what was put there", "take out what was put there when it is no longer needed"),
    (
        ": fit one model in a wider fixture, compile with `run_eagerly=True`, or use `allow_gpu_leak`",
        ": fit one model, or compile it with `run_eagerly=True`",
    ),
    ("let it go within the test", "let it go when done"),
    ("in teardown_method", "when done"),
    ("in teardown", "when done"),
    ("stays after the test", "stays"),
    ("before the test ends", "when done"),
    ("for each test", "for each use"),
)
"""What a hint says of tests, and what it says in its place: a notebook has no teardown, fixtures or markers."""


def annotate(finding: Finding, shorten: Callable[[str], str], why_line_unknown: str = "") -> Finding:
    """Return the finding as it is reported. `why_line_unknown` is told where no line that created an array is known."""
    if finding.kind == "cycle" and finding.holder is None:
        return finding  # it has no place and no line
    if finding.metric is None and finding.kind != "cycle" and not any(array.created for array in finding.tensors):
        finding = dataclasses.replace(finding, why_line_unknown=why_line_unknown or None)
    from pytest_gpuleak.explain.hints.order import advice_for  # only now, since findings of cycles need none

    def placed(holder: Holder | None, created: Sequence[Origin] = ()) -> Holder | None:
        return None if holder is None else _with_place(holder, shorten, created)

    grows_at = None if finding.holder is None else finding.holder.deciding
    replace = dataclasses.replace
    short = functools.partial(_short, shorten=shorten)
    parts = [replace(one, created=short(one.created), holder=placed(one.holder)) for one in finding.contributions]
    finding = replace(
        finding,
        holder=placed(finding.holder, [array.created for array in finding.tensors if array.created is not None]),
        contributions=tuple(parts),
        other_holders=tuple([_with_place(other, shorten) for other in finding.other_holders]),
        tensors=tuple([replace(array, created=short(array.created)) for array in finding.tensors]),
    )
    if finding.kind == "cycle" and finding.holder is not None:
        return replace(finding, hint=finding.hint or _hint_for_cycle(finding.holder))
    advice = None if finding.hint else advice_for(finding, grows_at)
    return finding if advice is None else replace(finding, hint=advice.hint, code=advice.code)


def for_script(hint: str) -> str:
    """Return a hint without words that only a test suite has a place for."""
    for words, instead in _WORDS:
        hint = hint.replace(words, instead)
    return hint


def _hint_for_cycle(holder: Holder) -> str:
    """Return which reference to cut so that reference counts free the memory at once."""
    if any(step.type == "traceback" for step in holder.path):
        return (
            "An exception kept in a local variable refers to the frame of that variable by its traceback: delete the "
            "variable when it is no longer needed (`del error`), or keep `str(error)`."
        )
    if holder.text.removeprefix("class ").startswith("unittest.mock."):
        return (
            "A mock is in cycles, with a class of its own and with its return value, so that only the garbage collector frees "
            "it and what it was called with: call `reset_mock()` when done, or have the test call it with something small."
        )
    if is_of_class(holder):
        return (
            "Each class is in a cycle with itself, so that only the garbage collector frees it and what its functions close "
            "over: define it in a module, or make it once for all, and pass it what it needs."
        )
    return (
        "The memory is freed only when the garbage collector runs: let one of these references, such as one back to an "
        "owner, be a `weakref.ref`, or cut it when the object is closed."
    )


def _with_place(holder: Holder, shorten: Callable[[str], str], created: Sequence[Origin] = ()) -> Holder:
    """Add the reference to edit and the line that sets it; the files of `created`, beside the root's, may set it."""
    # The place of a hook, if there is one, is known; it goes with that reference.
    known = holder.deciding is not None and holder.edit_file is None and not is_edited_as_a_whole(holder)
    deciding = holder.deciding if known else edge_to_edit(holder)
    # What a library's function adds to its own global, on behalf of the caller, is not for the user to edit.
    given = [holder.file] if holder.file is not None and not is_installed(holder.file) else []
    files = list(dict.fromkeys((*given, *(origin.file for origin in created))))
    set_in, line = holder.edit_file, holder.edit_line
    if set_in is None:
        set_in, line = _where_edited(holder, deciding, files[:_FILES_SEARCHED], created)
    return dataclasses.replace(
        holder,
        file=None if holder.file is None else shorten(holder.file),
        deciding=deciding,
        edit_file=None if set_in is None else shorten(set_in),
        edit_line=line,
        edit_code=holder.edit_code or ("" if set_in is None or line is None else code_at(set_in, line)),
    )


def _where_edited(
    holder: Holder, deciding: int | None, files: Sequence[str], created: Sequence[Origin]
) -> tuple[str | None, int | None]:
    from pytest_gpuleak.explain import source_lines

    if deciding is None:
        return _where_root_is_made(holder, files)
    while deciding and holder.path[deciding].type in FIXED:  # what cannot change is made anew where its owner is set
        deciding -= 1
    step = holder.path[deciding]
    if not step.edge.startswith((" (item of", "[")):
        return _where_set(step, files)

    def ran(file: str) -> list[int]:
        return [origin.line for origin in created if origin.file == file]

    owners = (_file_of(before.type) for before in holder.path[:deciding])
    searched = tuple(dict.fromkeys(filter(None, (*files, *owners))))
    place: tuple[str | None, int | None] = (None, None)
    container = _container(holder, deciding)
    if _CONTAINER.fullmatch(container) is not None:
        place = _first_line(searched, lambda file: source_lines.line_of_adding(file, container, ran(file)))
        if place[0] is None:
            place = _first_line(searched, lambda file: source_lines.line_of_adding_by_alias(file, container))
    if place[0] is None and deciding > 0:
        outer = _container(holder, deciding - 1)
        if _CONTAINER.fullmatch(outer) is not None:
            place = _first_line(searched, lambda file: source_lines.line_of_adding_to_item(file, outer))
        if place[0] is None and holder.path[deciding - 1].type.endswith(KEEPS_KEY):  # value and entry are made at once
            place = _first_line(searched, lambda file: source_lines.line_of_adding(file, outer, ran(file)))
    return place if place[0] is not None else _where_given(holder, deciding, searched, ran)


def _where_root_is_made(holder: Holder, files: Sequence[str]) -> tuple[str | None, int | None]:
    from pytest_gpuleak.explain import source_lines

    if first_wrapper(holder) is not None:
        return _where_set(PathStep(f".{holder.root.removesuffix('.__func__').rpartition('.')[2]}", ""), files)
    return _first_line(files, lambda file: source_lines.line_of_registration(file, holder.root))


def _where_given(
    holder: Holder, deciding: int, files: Sequence[str], ran: Callable[[str], list[int]]
) -> tuple[str | None, int | None]:
    """Return the line that gives something to a library's object, which keeps it in a container of its own."""
    from pytest_gpuleak.explain import source_lines

    def line(owner: str, file: str) -> int | None:
        return source_lines.line_of_giving(file, owner, ran(file))

    place: tuple[str | None, int | None] = (None, None)
    while place[0] is None and deciding > 0 and not is_users(holder.path[deciding - 1].type):
        deciding -= 1
        owner = _container(holder, deciding)
        if _CONTAINER.fullmatch(owner) is not None:
            place = _first_line(files, functools.partial(line, owner))
    return place


def _container(holder: Holder, index: int) -> str:
    """Return how the source writes the container that a reference leads from: ``HISTORY``, ``.history``, ``['history']``."""
    if index == 0:
        fixture = _FIXTURE.fullmatch(holder.root)
        if fixture is not None:
            return fixture["name"]
        name = holder.root.rpartition(".")[2]
        return f".{name}" if holder.kind == "class" else name
    before = holder.path[index - 1]
    variable = _VARIABLE.match(before.type)
    return before.edge if variable is None else variable["name"]


def _file_of(label: str) -> str | None:
    from pytest_gpuleak.heap import safe_access

    module = label.rpartition(".")[0] if is_users(label) else ""
    file = safe_access.plain_text(safe_access.loaded(module, "__file__")) if module and " " not in module else None
    return file if file is not None and file.endswith(".py") else None


def _first_line(files: Iterable[str], find: Callable[[str], int | None]) -> tuple[str | None, int | None]:
    return next(((file, line) for file in files if (line := find(file)) is not None), (None, None))


def _where_set(step: PathStep, files: Sequence[str]) -> tuple[str | None, int | None]:
    """Return the line that sets an attribute: in its class, or from outside, as ``model.cache = ...`` in a test."""
    from pytest_gpuleak.explain import source_lines

    if _ATTRIBUTE.fullmatch(step.edge) is None:
        return None, None
    attribute = step.edge[1:]
    place = _where_class_sets(step.type, attribute)
    if place[0] is None:
        searched = dict.fromkeys(filter(None, (*files, _file_of(step.type))))
        place = _first_line(searched, lambda file: source_lines.line_of_setting(file, attribute))
    return place


@functools.lru_cache(maxsize=256)
def _where_class_sets(label: str, attribute: str) -> tuple[str | None, int | None]:
    """Return the line in a user's class, or in a class that it is derived from, that sets an attribute."""
    from pytest_gpuleak.explain.definitions import Places
    from pytest_gpuleak.heap import safe_access

    module, name = _split(label)
    if module is None:
        return None, None
    found: Any = safe_access.resolve(module, name)
    bases = safe_access.mro(found)[1:-1] if safe_access.is_a(found, type) else ()
    classes = [(module, name), *((safe_access.class_module(one), safe_access.class_qualname(one)) for one in bases)]
    places = Places()
    users = ((at, of) for at, of in classes if at is not None and is_users(f"{at}.{of}"))
    set_in = (places.of_attribute(at, of, attribute) for at, of in users)
    return next((place for place in set_in if place[0] is not None), (None, None))


def _split(label: str) -> tuple[str | None, str]:
    """Return the loaded module of a class's label, and the class's name in it; None where no module is loaded."""
    from pytest_gpuleak.heap.safe_access import loaded_module

    module, name = label, ""
    while "." in module and " " not in label:
        module, _, last = module.rpartition(".")
        name = f"{last}.{name}" if name else last
        if loaded_module(module) is not None:
            return module, name
    return None, name


def _short(origin: Origin | None, shorten: Callable[[str], str]) -> Origin | None:
    return None if origin is None else dataclasses.replace(origin, file=shorten(origin.file))
