"""Read which functions `atexit` keeps, in an array that no function returns (Modules/atexitmodule.c).

`atexit.unregister` compares each of them with a probe that equals nothing. A function's own ``__eq__`` is user code: a
profile function ends the call before it.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.async_exceptions import take_back

if TYPE_CHECKING:
    from collections.abc import Callable


class _UserCodeError(Exception):
    """Ends a comparison that would run user code."""


class _Probe:
    """Is equal to nothing, and records what it is compared with."""

    __slots__ = ("met",)
    __hash__ = None  # type: ignore[assignment]  # never a key

    def __init__(self) -> None:
        self.met: list[object] = []

    def __eq__(self, other: object) -> bool:
        # The interpreter drops a profile function that has raised, and the error of a descriptor that gives an `__eq__`
        # is not passed on (Objects/typeobject.c, slot_tp_richcompare): the next comparison would run unguarded.
        if sys.getprofile() is not _guard:
            sys.setprofile(_guard)
        self.met.append(other)
        return False


def _guard(frame: types.FrameType, event: str, _: object) -> None:
    if event == "call" and frame.f_code is not _ALLOWED:
        raise _UserCodeError


_ALLOWED: Final = _Probe.__eq__.__code__


def exit_callbacks() -> list[object]:
    """Return what `atexit` keeps; nothing while a profiler runs, since the guard against user code needs its place."""
    unregister = safe_access.loaded("atexit", "unregister")
    if type(unregister) is not types.BuiltinFunctionType or sys.getprofile() is not None:
        return []
    if sys.version_info[:2] == (3, 11):
        take_back()  # with the interpreter's mark set, the probe's first call would never end
    probe = _Probe()
    try:
        _compare(unregister, probe)
    except _UserCodeError:  # what comes behind a function with a comparison of its own stays unknown
        pass
    finally:
        sys.setprofile(None)
    found, probe.met = probe.met, []
    return found


def _compare(unregister: Callable[[object], object], probe: _Probe) -> None:
    sys.setprofile(_guard)
    unregister(probe)
