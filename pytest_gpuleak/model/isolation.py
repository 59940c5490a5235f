"""Run one part of a report, so that a fault in it costs this part alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

_ERROR_LIMIT = 300


def isolated(part: Callable[[], _T], instead: Callable[[str], _T]) -> _T:
    """Return what `part` returns. For an Exception, return what `instead`, which must not raise, makes of its line."""
    try:
        return part()
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one part, the others are to be had
        return instead(describe_error(error))


def describe_error(error: BaseException) -> str:
    """Describe an error on one line, cut and without control characters: ``KeyError: 'kind'``."""
    name = type(error).__name__
    try:
        said = str(getattr(error, "strerror", None) or error)
    except Exception:  # noqa: BLE001 - an exception's text is code, too
        said = ""
    return clean_text(f"{name}: {said}" if said else name, _ERROR_LIMIT)
