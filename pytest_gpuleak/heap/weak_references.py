"""Refer weakly to objects of any type, without running their code."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_OFFSET: Final[Any] = type.__dict__.get("__weakrefoffset__")
"""Reads from a class where its objects keep their weak references; None on PyPy, where all objects may have some."""


def has_weak_references(value: object) -> bool:
    """Tell whether objects of its type support weak references, without running its code."""
    return _OFFSET is None or bool(_OFFSET.__get__(type(value)))


def weak_reference(value: object) -> Callable[[], object | None] | None:
    """Return a weak reference; None for a type without any."""
    try:
        return weakref.ref(value) if has_weak_references(value) else None
    except TypeError:  # PyPy's built-in types
        return None
