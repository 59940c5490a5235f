"""Choose the reference to edit, and shorten long paths, from a `Holder`'s path alone."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.registry import own_layouts, own_packages
from pytest_gpuleak.model.findings import PathStep

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuleak.model.findings import Holder

MAX_TEXT: Final = 200
"""Length of a path's text from which it is shortened, in characters."""

MAX_EDGES: Final = 12
"""Largest number of references that are shown of a path."""

MAX_PATH: Final = 200
"""Largest number of references that a holder keeps. The middle of a longer path is left out."""

SHOWN_AT_ENDS: Final = 4
"""References shown at either end of a shortened path."""

PART_MARKS: Final = tuple(layout.mark for layout in own_layouts())
"""One of these ends the label of an edge from a module to its submodule, parameter or buffer: structure, not a leak."""

OF_FRAMEWORKS: Final = own_packages()
"""How the labels of types begin that are a framework's own."""

_ITEM: Final = re.compile(r"\[.*\]", re.DOTALL)
_NAMED_KEY: Final = re.compile(r"\['[^\W\d]+'\]")
"""A key that reads like an attribute's name: a record's field, not one of many similar entries."""

_OMITTED: Final = re.compile(r" … (\d+) more … ")
_WORDS: Final = (" (item of", " (a key)", " (cached result)", " (cache key)")
FIXED: Final = ("tuple", "frozenset", "mappingproxy", "memoryview")
"""Types whose items cannot be taken out."""

_TRACEBACK: Final = ".__traceback__"

_CODE: Final = ("closure variable ", "default ", "frame of ", "class ")
"""Beginnings of labels of references in the user's functions and classes, not in an object."""

REGISTERED: Final = ("atexit callback ", "weakref.finalize callback ", "signal.getsignal(", "sys.get")
"""How the roots of functions begin that were handed to the interpreter: to edit is that they were."""

CURRENT_VALUE: Final = ".get()"
"""End of the root of a context variable's value: to edit is that it was set."""

KEEPS_KEY: Final = ", whose value refers to its key"
"""End of the label of a weak dict's entry that stays forever: its value keeps its key alive."""

_LINK: Final = re.compile(r"\.__closure__\[\d+\]\.cell_contents|\.__(?:kw)?defaults__\[.*\]|\.__wrapped__", re.DOTALL)
_TO_FUNCTION: Final = (".__func__", ".fget")
"""References from a bound method and a property to the function that they call."""

_LIBRARIES: Final = frozenset(
    {"torch", "torchvision", "numpy", "jax", "tensorflow", "keras", "tf_keras", "cupy", "pytest", "_pytest", "pluggy"}
)


def edge_to_edit(holder: Holder) -> int | None:
    """Return the index in ``holder.path`` of the reference to edit; None where it is the root itself.

    From the root on it is 1. the first entry of a container that can shrink (a list, a set, a cache, hooks), except
    keys that read like a field's name (``['loss']``); 2. else the first such field; 3. else the last attribute or
    variable of the user's own code. A framework's own containers (a `Sequential`) are passed over.

    An entry of a weak dict whose value refers to its key is edited at that reference. Of what an exception keeps through
    its traceback, the reference to the exception is edited; of functions that each wrap the one before, that to the last.
    """
    if is_edited_as_a_whole(holder) or is_of_class(holder):
        return None
    wrapped = first_wrapper(holder)
    if wrapped is not None:
        return wrapped - 1 if wrapped else None
    field: int | None = None
    attribute: int | None = None
    entry = False
    path = holder.path
    for index, step in enumerate(path):
        if step.type.endswith(KEEPS_KEY):
            return _reference_to_key(path, index)
        if step.edge == _TRACEBACK and holder.kind != "unknown":  # in a cycle, the frame's variable is edited
            break
        entry = _is_entry(path, index, entry)
        words = step.edge.startswith(_WORDS) and not (index > 0 and path[index - 1].type.startswith(OF_FRAMEWORKS))
        if words or (entry and _NAMED_KEY.fullmatch(step.edge) is None):
            return index
        if entry and field is None:
            field = index
        if step.edge.startswith(".") and is_users(step.type):
            attribute = index
    return attribute if field is None else field


def is_of_class(holder: Holder) -> bool:
    """Tell whether a cycle goes through a class, which is in a cycle with itself whatever is cut."""
    return holder.text.startswith("class ")


def first_wrapper(holder: Holder) -> int | None:
    """Return where the path is at the last of functions of one definition that each keep the one before; None without such.

    It has a name: the root, an attribute, or a key that reads like one. What else the functions share may be a cache.
    """
    path, start = holder.path, 0
    while start < len(path) and not _is_of_function(path[start]):
        start += 1
    end = start
    while end < len(path) and _is_of_function(path[end]):
        end += 1
    links = [step for step in path[start:end] if step.edge not in _TO_FUNCTION]
    named = not start or is_name(path[start - 1].edge)
    entry = end < len(path) and path[end].edge.startswith("[") and not path[end].type.endswith(PART_MARKS)
    if holder.kind not in ("module", "class") or len(links) < 2 or not named or entry:
        return None
    first, second = (link.type.rpartition(" of ")[2] for link in links[:2])
    # What `functools.wraps` has marked has the name of what it wraps.
    return start if links[0].edge == ".__wrapped__" or first == second else None


def _is_of_function(step: PathStep) -> bool:
    return step.edge in _TO_FUNCTION or _LINK.fullmatch(step.edge) is not None


def is_name(edge: str) -> bool:
    """Tell whether a reference is by a name that the user has written: an attribute, or a key that reads like one."""
    return edge.startswith(".") or _NAMED_KEY.fullmatch(edge) is not None


def is_edited_as_a_whole(holder: Holder) -> bool:
    """Tell whether to edit is what made the root: a callback's registration, or the setting of a context variable."""
    return holder.root.startswith(REGISTERED) or (holder.kind == "module" and holder.root.endswith(CURRENT_VALUE))


def _reference_to_key(path: Sequence[PathStep], index: int) -> int:
    """Return the reference from the value of a weak dict's entry to its key; the entry where the path leads past it."""
    key = path[index].edge.removeprefix("[<").removesuffix(">]")
    return next((at for at in range(index + 1, len(path) - 1) if path[at + 1].type == key), index)


def _is_entry(path: Sequence[PathStep], index: int, before_is: bool) -> bool:
    step = path[index]
    if _ITEM.fullmatch(step.edge) is None or step.type in FIXED or step.type.endswith(PART_MARKS):
        return False
    if index == 0:
        return True
    before = path[index - 1]
    if "_hooks" in before.edge:
        return True
    if before.type.startswith(OF_FRAMEWORKS) or step.type.startswith(OF_FRAMEWORKS):
        return False
    # An entry of a library's entry: ``.param_groups[0]['params'][1]``.
    return not _ITEM.fullmatch(before.edge) or before.type in FIXED or before_is


def is_users(label: str) -> bool:
    """Tell whether the code of a type, or of what a label names, may be edited: no framework's, nor Python's own."""
    if label.startswith(_CODE):
        return True
    package, dot, _ = label.partition(".")
    if not dot or label.endswith(PART_MARKS):
        return False
    return package not in _LIBRARIES and package.lstrip("_") not in sys.stdlib_module_names


def with_text(holder: Holder) -> Holder:
    """Append the path's text to a holder's: of a long path the ends and the edge to edit. `MAX_PATH` steps are kept."""
    path = holder.path
    if len(path) > MAX_PATH:
        half = MAX_PATH // 2
        path = (*path[:half], PathStep(omitted_edges(len(path) - 2 * half), ""), *path[-half:])
        holder = dataclasses.replace(holder, path=path)
    edges = [step.edge for step in path]
    text = holder.text + "".join(edges)
    if len(edges) > MAX_EDGES or (edges and len(text) > MAX_TEXT):
        text = holder.text + "".join(_shortened(edges, edge_to_edit(holder)))
    return dataclasses.replace(holder, text=text)


def omitted_edges(count: int) -> str:
    """Return the text in the place of omitted references."""
    return f" … {count} more … "


def _shortened(edges: Sequence[str], marked: int | None) -> Iterator[str]:
    omitted = 0
    for index, edge in enumerate(edges):
        if index < SHOWN_AT_ENDS or index >= len(edges) - SHOWN_AT_ENDS or index == marked:
            if omitted:
                yield omitted_edges(omitted)
            omitted = 0
            yield edge
        else:
            already = _OMITTED.fullmatch(edge)
            omitted += 1 if already is None else int(already.group(1))
