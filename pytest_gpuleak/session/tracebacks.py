"""Walk the errors behind an error, and remove the plugin's own frames, since pytest may show hidden ones."""

from __future__ import annotations

import builtins
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_PACKAGE = __name__.partition(".")[0]
# Bypass the user's class, whose attributes may be properties.
_TRACEBACK, _CAUSE, _CONTEXT = (vars(BaseException)[f"__{name}__"] for name in ("traceback", "cause", "context"))


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its causes, contexts and members of groups, nearest first, each once."""
    waiting: list[BaseException | None] = [error]
    met: set[int] = set()
    # The backport for Python 3.10, that pytest uses too.
    backport = getattr(sys.modules.get("exceptiongroup"), "BaseExceptionGroup", None)
    group: Any = getattr(builtins, "BaseExceptionGroup", backport)
    while waiting:
        one = waiting.pop(0)
        if one is not None and id(one) not in met:
            met.add(id(one))
            yield one
            waiting += [_CAUSE.__get__(one), _CONTEXT.__get__(one)]
            if group is not None and group in type(one).__mro__:
                waiting += vars(group)["exceptions"].__get__(one)


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return an error's traceback, without running code of its class."""
    first: TracebackType | None = _TRACEBACK.__get__(error)
    return first


def drop_own_frames(error: BaseException) -> None:
    """Remove the frames of the plugin's hook wrappers from the tracebacks of an error and its causes."""
    for one in error_chain(error):
        _drop(traceback_of(one))


def _drop(first: TracebackType | None) -> None:
    """Drop each wrapper that pluggy threw the error into: its entry lies between two of one frame of pluggy's."""
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
