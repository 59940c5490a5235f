"""Read the elements of arrays of Python objects, which the collector does not see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_ELEMENTS: Final = 100_000
"""Elements of one array that are read. A column of a million strings is left out."""


def elements_of(array: Any, array_class: Any) -> Iterable[tuple[str, object]]:
    """Return the elements of an array of objects, each with its index as Python writes it; none for other arrays."""
    dtype: Any = safe_access.slot(array, array_class, "dtype")
    if getattr(dtype, "kind", "") != "O":
        return ()
    shape: tuple[int, ...] = array_class.shape.__get__(array)
    if not 0 < int(array_class.size.__get__(array)) <= MAX_ELEMENTS:
        return ()
    values: Any = array_class.tolist(array)
    if len(shape) == 0:
        return (("()", values),)
    if len(shape) == 1:
        return ((str(index), value) for index, value in enumerate(values))
    return _nested(values, len(shape))


def _nested(values: Any, depth: int, before: str = "") -> Iterable[tuple[str, object]]:
    for index, value in enumerate(values):
        if depth == 1:
            yield f"{before}{index}", value
        else:
            yield from _nested(value, depth - 1, f"{before}{index}, ")
