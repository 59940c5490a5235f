"""Remove the plugin's own frames from a failure's traceback, so that pytest shows the same as without the plugin.

Hiding them is not enough: without a user frame pytest shows all frames, unless there is a plugin's frame.
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
    """Remove the frames of the plugin's hook wrappers from the tracebacks of an error and its causes."""
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        one = errors.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        _drop(one.__traceback__)
        # Bypass the user's class, whose attributes may be properties.
        errors += [_CAUSE.__get__(one), _CONTEXT.__get__(one)]
        if _GROUP is not None and _GROUP in type(one).__mro__:
            errors += _GROUP.exceptions.__get__(one)


def _drop(first: TracebackType | None) -> None:
    """Drop each wrapper that an error passed through, with the call that brought the error there.

    pluggy throws the error into the wrapper, whose entry lies between two of pluggy's with the same frame. Any other
    entry of ours has itself failed, and stays.
    """
    if first is None:
        return
    last, entry = first, first.tb_next
    while entry is not None:
        wrapper = entry.tb_next
        after = None if wrapper is None else wrapper.tb_next
        if wrapper is not None and after is not None and after.tb_frame is entry.tb_frame and _is_own(wrapper):
            last.tb_next = entry = after  # several of our wrappers may follow each other
        else:
            last, entry = entry, wrapper


def _is_own(entry: TracebackType) -> bool:
    return str(entry.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE
