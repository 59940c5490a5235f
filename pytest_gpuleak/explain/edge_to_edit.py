"""The edge to edit, and how a long path is shown.

Pure functions of a `Holder`'s path: reports call them when they render.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.registry import own_layouts, own_packages
from pytest_gpuleak.model.findings import PathStep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.model.findings import Holder

MAX_TEXT: Final = 200
"""Characters of a path from which it is shortened in the middle."""

MAX_EDGES: Final = 12
"""Edges that are shown of a path at most."""

MAX_PATH: Final = 200
"""Edges that a holder keeps at most; beyond that the middle is left out."""

SHOWN_AT_ENDS: Final = 4
"""Edges shown at either end of a shortened path."""

PART_MARKS: Final = tuple(layout.mark for layout in own_layouts())
"""One of these ends the label of an edge from a module to its own submodule, parameter or buffer: structure, not a leak."""

OF_FRAMEWORKS: Final = own_packages()
"""How the labels of types begin that are a framework's own."""

_ITEM: Final = re.compile(r"\[.*\]", re.DOTALL)
_NAMED_KEY: Final = re.compile(r"\['[^\W\d]+'\]")
"""A key that reads as an attribute's name: a record's field rather than one of many like entries."""

_OMITTED: Final = re.compile(r" … (\d+) more … ")
_WORDS: Final = (" (item of", " (a key)", " (cached result)", " (cache key)")
_FIXED: Final = ("tuple", "frozenset", "mappingproxy", "memoryview")
"""Containers that no one can take an item from."""

_CODE: Final = ("closure variable ", "default ", "frame of ", "class ")
"""How labels begin of edges that lie in the user's functions and classes rather than in an object."""

_LIBRARIES: Final = frozenset(
    {"torch", "torchvision", "numpy", "jax", "tensorflow", "cupy", "pytest", "_pytest", "pluggy"}
)


def deciding_edge(holder: Holder) -> int | None:
    """The index in ``holder.path`` of the edge that a person would edit; None where it is the root itself.

    The rule: where a leak is one of many entries, the container that grew is the place. So it is, from the root on,

    1. the first entry of a container that can shrink (a list, a set, a cache, a hook dict), a key that reads as a
       field's name (``['loss']``) left aside;
    2. else the first such field;
    3. else the last attribute or variable that belongs to the user's own code.

    Containers of a framework's own structure (an optimiser's groups, a `Sequential`) are passed over; hooks are not.
    """
    field: int | None = None
    attribute: int | None = None
    entry = False
    path = holder.path
    for index, step in enumerate(path):
        entry = _is_entry(path, index, entry)
        words = step.edge.startswith(_WORDS) and not (index > 0 and path[index - 1].type.startswith(OF_FRAMEWORKS))
        if words or (entry and _NAMED_KEY.fullmatch(step.edge) is None):
            return index
        if entry and field is None:
            field = index
        if step.edge.startswith(".") and _is_users(step.type):
            attribute = index
    return attribute if field is None else field


def _is_entry(path: Sequence[PathStep], index: int, before_is: bool) -> bool:
    """Whether an edge is an item that can be taken out of its container by the user; `before_is`: the one before it."""
    step = path[index]
    if _ITEM.fullmatch(step.edge) is None or step.type in _FIXED or step.type.endswith(PART_MARKS):
        return False
    if index == 0:
        return True
    before = path[index - 1]
    if "_hooks" in before.edge:
        return True
    if before.type.startswith(OF_FRAMEWORKS) or step.type.startswith(OF_FRAMEWORKS):
        return False
    # An entry of an entry of the library's: ``.param_groups[0]['params'][1]``.
    return not _ITEM.fullmatch(before.edge) or before.type in _FIXED or before_is


def _is_users(label: str) -> bool:
    """Whether the label of an attribute's edge names the user's own code."""
    if label.startswith(_CODE):
        return True
    package, dot, _ = label.partition(".")
    if not dot or label.endswith(PART_MARKS):
        return False
    return package not in _LIBRARIES and package.lstrip("_") not in sys.stdlib_module_names


def shown_parts(holder: Holder) -> tuple[str, str, str]:
    """The text of a holder in three parts: before the deciding edge, that edge, and after it.

    Put together they are ``holder.text``. Where no edge decides, the root is the middle part.
    """
    marked = deciding_edge(holder)
    edges = [step.edge for step in holder.path]
    for pieces in (list(enumerate(edges)), _pieces(edges, marked)):
        texts = [text for _, text in pieces]
        if holder.text.endswith("".join(texts)):
            lead = holder.text[: len(holder.text) - len("".join(texts))]
            if marked is None:
                return "", lead, "".join(texts)
            place = [index for index, _ in pieces].index(marked)
            return lead + "".join(texts[:place]), texts[place], "".join(texts[place + 1 :])
    return "", holder.text, ""


def with_text(holder: Holder) -> Holder:
    """A holder, whose text ends at its root so far, with the text of its path: shortened in the middle where it is long.

    Both ends stay, and so does the deciding edge. Of a path longer than `MAX_PATH` the middle is left out too.
    """
    path = holder.path
    if len(path) > MAX_PATH:
        half = MAX_PATH // 2
        path = (*path[:half], PathStep(omitted_edges(len(path) - 2 * half), ""), *path[-half:])
        holder = dataclasses.replace(holder, path=path)
    edges = [step.edge for step in path]
    if not edges:
        return holder
    text = holder.text + "".join(edges)
    if len(edges) > MAX_EDGES or len(text) > MAX_TEXT:
        pieces = _pieces(edges, deciding_edge(holder))
        text = holder.text + "".join([piece for _, piece in pieces])
    return dataclasses.replace(holder, text=text)


def omitted_edges(count: int) -> str:
    """What stands in a path for the edges that are left out."""
    return f" … {count} more … "


def _pieces(edges: Sequence[str], marked: int | None) -> list[tuple[int | None, str]]:
    """Edges with their indices, the middle left out; how many is said in a piece that has no index."""
    shown: list[tuple[int | None, str]] = []
    omitted = 0
    for index, edge in enumerate(edges):
        if index < SHOWN_AT_ENDS or index >= len(edges) - SHOWN_AT_ENDS or index == marked:
            if omitted:
                shown.append((None, omitted_edges(omitted)))
                omitted = 0
            shown.append((index, edge))
        else:
            already = _OMITTED.fullmatch(edge)
            omitted += 1 if already is None else int(already.group(1))
    return shown
