"""Hints on stored functions and methods: closures, defaults, bound methods, partials."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.hints.trail import code

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.explain.hints.trail import Trail

_DEFAULT: Final = re.compile(r"\.__(?:kw)?defaults__\[.*\]")
_CLOSURE: Final = re.compile(r"\.__closure__\[\d+\]\.cell_contents")
_VARIABLE: Final = re.compile(r"closure variable '(?P<name>\w+)' of .*")


def mutable_default(trail: Trail) -> str | None:
    """Recognise a container that is a default argument: created once, when the function is defined."""
    found = trail.match(_DEFAULT)
    if found is None or not trail.named or not trail.is_item(found[0] + 1) or trail.piles_up_before(found[0]):
        return None
    return (
        f"A default argument of {trail.owner(found[0])} is one object for all calls and keeps what they put into it: "
        "make the default `None`, and a new container in the body."
    )


def memo_in_closure(trail: Trail) -> str | None:
    """Recognise a named function with a container in its closure that keeps its arguments: a cache made by hand."""
    variable = _variable(trail, 0)
    if variable is None or trail.kind not in ("module", "class") or not trail.is_item(1):
        return None
    return (
        f"{trail.owner(0)} keeps it in {code(variable)}, a container of its closure that nothing empties: give it a way "
        "to be cleared, and call that in teardown."
    )


def closure(trail: Trail) -> str | None:
    """Recognise a stored function that closes over an array, or over its holder."""
    index = _stored(trail, lambda position: _variable(trail, position) is not None)
    if index is None:
        return None
    variable = _variable(trail, index) or ""
    return (
        f"A function kept in {trail.container_of(index)} closes over {code(variable)}: take the function out in teardown, or "
        "let it refer to plain values."
    )


def bound_method(trail: Trail) -> str | None:
    """Recognise a stored bound method, which keeps its object."""
    index = _stored(trail, lambda position: trail.edge(position) == ".__self__" and trail.type(position) == "method")
    if index is None:
        return None
    return (
        f"A bound method kept in {trail.container_of(index)} keeps its object: take it out in teardown, or store a "
        "`weakref.WeakMethod`."
    )


def partial(trail: Trail) -> str | None:
    """Recognise a stored `functools.partial`, which keeps its arguments."""
    arguments = (".args", ".keywords")
    index = _stored(
        trail, lambda position: trail.type(position) == "functools.partial" and trail.edge(position) in arguments
    )
    if index is None:
        return None
    return (
        f"A `functools.partial` kept in {trail.container_of(index)} keeps its arguments: take it out in teardown, or give it "
        "plain values."
    )


def _variable(trail: Trail, index: int) -> str | None:
    found = _VARIABLE.fullmatch(trail.type(index)) if _CLOSURE.fullmatch(trail.edge(index)) else None
    return None if found is None else found["name"]


def _stored(trail: Trail, is_edge: Callable[[int], bool]) -> int | None:
    """Return the position of the first step that `is_edge` accepts, where attributes and items alone lead there.

    A function that is itself the root was defined, not stored: taking it out is no remedy.
    """
    index = next((position for position in range(len(trail.steps)) if is_edge(position)), None)
    if not index or not trail.named or not trail.is_plain_until(index):
        return None
    return index
