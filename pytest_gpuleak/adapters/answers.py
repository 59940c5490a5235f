"""Check the values that a conftest.py's framework returns."""

from __future__ import annotations

import operator
from typing import Any, TypeVar

from pytest_gpuleak.heap.classes import is_kind_of

_T = TypeVar("_T")


class WrongAnswer(TypeError):  # noqa: N818 - its message gives the value returned and the values accepted
    """Raised when a framework's method returns a value that is not accepted."""


def is_named(value: object, kind: type) -> bool:
    """Return whether a value's class has this class's name: it may come from another copy of this package's module."""
    return bool(type.__dict__["__qualname__"].__get__(type(value)) == kind.__qualname__)


def of_type(value: _T, kind: type) -> _T:
    """Return the value if its type is exactly this type. Raises WrongAnswer for any other."""
    if type(value) is not kind:
        raise WrongAnswer(f"returned {shown(value)}, accepted is a {kind.__name__}")
    return value


def text_of(value: object) -> str:
    """Return the value if it is a `str`. Raises WrongAnswer for any other."""
    if type(value) is not str:
        raise WrongAnswer(f"returned {shown(value)}, accepted is a text")
    return value


def size_of(value: object) -> int:
    """Return a number of bytes or objects. Raises WrongAnswer for any other value and below 0."""
    return whole(value, "a number, 0 or more", least=0)


def size_or_none(value: object) -> int | None:
    """Return a size, or None. Raises WrongAnswer for any other value."""
    return None if value is None else size_of(value)


def of_class(value: Any, kind: type) -> Any:
    """Return the value if its class has this name (`is_named`). Raises WrongAnswer for any other."""
    if not is_named(value, kind):
        raise WrongAnswer(f"returned {shown(value)}, accepted is a {kind.__name__}")
    return value


def whole(value: object, accepted: str, least: int | None = None) -> int:
    """Return a number as an `int`. Raises WrongAnswer for any other value, and for a number below `least`."""
    try:
        number = operator.index(value)  # type: ignore[arg-type] # an object without an index raises
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        raise WrongAnswer(f"returned {shown(value if number is None else number)}, accepted is {accepted}")
    return number


def shown(value: object) -> str:
    """Return a value as text for an error: numbers and short texts as they are, else the type."""
    if value is None or type(value) in (int, float, bool):
        return repr(value)
    if type(value) is str:
        return repr(value[:60])
    if is_kind_of(type(value), type):
        return f"the class {type.__dict__['__name__'].__get__(value)}"
    return f"an object of type {type(value).__name__}"
