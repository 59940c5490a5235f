"""Takes the plugin's own frames off the traceback of a test's failure, so that pytest shows what it shows without it.

Marked as hidden they are not shown, but they are there: where pytest leaves out its own frames and nothing of the user's
remains, it shows them all, unless there is a frame of a plugin's.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

_PACKAGE = __name__.partition(".")[0]
_CAUSE, _CONTEXT = BaseException.__dict__["__cause__"], BaseException.__dict__["__context__"]
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", None)  # Python 3.11


def drop_own_frames(error: BaseException) -> None:
    """Take the frames of the plugin's hook wrappers off the tracebacks of an error and of those it comes from.

    Args:
        error: what a phase of a test has raised.
    """
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        one = errors.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        _drop(one.__traceback__)
        # Read past the user's class, whose attributes may be properties.
        errors += [_CAUSE.__get__(one), _CONTEXT.__get__(one)]
        if _GROUP is not None and _GROUP in type(one).__mro__:
            errors += _GROUP.exceptions.__get__(one)


def _drop(first: TracebackType | None) -> None:
    """Drop each wrapper that an error went through, with the call that brought the error there.

    pluggy throws the error into the wrapper: the entries before and after it are of one and the same frame of pluggy's.
    An entry of ours that does not stand between two such has itself failed, and stays.
    """
    if first is None:
        return
    last, entry = first, first.tb_next
    while entry is not None:
        wrapper = entry.tb_next
        after = None if wrapper is None else wrapper.tb_next
        if wrapper is not None and after is not None and after.tb_frame is entry.tb_frame and _is_own(wrapper):
            last.tb_next = entry = after  # of several wrappers of ours one may follow the other
        else:
            last, entry = entry, wrapper


def _is_own(entry: TracebackType) -> bool:
    return str(entry.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE
