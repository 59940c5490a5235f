"""Hints on stored functions and methods: closures, defaults, bound methods, partials."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.edge_to_edit import first_wrapper
from pytest_gpuleak.explain.hints.pattern import Pattern
from pytest_gpuleak.explain.hints.trail import code

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.trail import Trail

_CLOSURE: Final = r"\.__closure__\[\d+\]\.cell_contents"
_IS_CELL: Final = re.compile(_CLOSURE).fullmatch
_VARIABLE: Final = r"closure variable '(?P<name>\w+)' of .*"


def _is_stored(trail: Trail, index: int) -> bool:
    """Tell whether attributes and items lead to a function. A function that is the root was defined, not stored."""
    return index > 0 and trail.is_plain_until(index)


mutable_default: Final = Pattern(
    "A default argument of {owner} is one object for all calls and keeps what they put into it: make the default "
    "`None`, and a new container in the body.",
    edge=r"\.__(?:kw)?defaults__\[.*\]",
    holds=lambda trail, index: trail.is_item(index + 1) and not trail.piles_up_before(index),
)
"""A container that is a default argument: created once, when the function is defined."""


memo_in_closure: Final = Pattern(
    "{owner} keeps it in `{name}`, a container of its closure that nothing empties: give it a way to be cleared, and "
    "call that in teardown.",
    edge=_CLOSURE,
    type=_VARIABLE,
    kinds=("module", "class"),
    holds=lambda trail, index: index == 0 and trail.is_item(1),
)
"""A named function with a container in its closure that keeps its arguments: a cache made by hand."""


exit_stack: Final = Pattern(
    "{owner} keeps what it is to call when it is closed: call its `close()` in teardown, or enter it by `with`.",
    edge=r"\._exit_callbacks",
    type=r"contextlib\.(?:Async)?ExitStack",
)
"""An exit stack that is never closed."""


def wrapped_again(trail: Trail) -> str | None:
    """Recognise a function, under a name of a module, class or object, that each run wraps once more."""
    start = first_wrapper(trail.holder)
    if start is None or not trail.growing:
        return None
    name = trail.owner(start)
    return (
        f"Each run wraps the function {name} once more, and each keeps the one before: put back in teardown what was "
        "there (`monkeypatch.setattr` and `mock.patch` do)."
    )


def closure(trail: Trail) -> str | None:
    """Recognise a stored function that closes over an array, or over its holder; also one that `torch.library` was given."""
    steps = [
        (index, re.fullmatch(_VARIABLE, step.type)) for index, step in enumerate(trail.steps) if _IS_CELL(step.edge)
    ]
    found = [(index, match["name"]) for index, match in steps if match is not None]
    if not found or not trail.named:
        return None
    if trail.root.startswith("torch._library."):
        return (
            "An operator that `torch.library` was given stays until Python ends, and its function closes over "
            f"{code(found[-1][1])}: define it in a module, and pass it what it needs."
        )
    index, name = found[0]
    if not _is_stored(trail, index):
        return None
    return (
        f"A function kept in {trail.container_of(index)} closes over {code(name)}: take the function out in teardown, or let "
        "it refer to plain values."
    )


bound_method: Final = Pattern(
    "A bound method kept in {container} keeps its object: take it out in teardown, or store a `weakref.WeakMethod`.",
    edge=r"\.__self__",
    type=r"method(?: .*)?",
    holds=_is_stored,
)
"""A stored bound method, which keeps its object."""


partial: Final = Pattern(
    "A `functools.partial` kept in {container} keeps its arguments: take it out in teardown, or give it plain values.",
    edge=r"\.args|\.keywords",
    type=r"functools\.partial",
    holds=_is_stored,
)
"""A stored `functools.partial`, which keeps its arguments."""
