"""Read autograd graphs only while no other thread can be running a backward pass.

The pass drops saved tensors without the interpreter's lock. With torch 2.13, reading one at that moment crashes the
process within seconds (torch/csrc/autograd/python_variable.cpp, "PyObject preservation").
"""

from __future__ import annotations

import contextlib
import os
import sys
from _thread import get_ident
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.torch.lookup import torch_module
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

WAIT_S: Final = 1.0
"""Wait for other threads, in seconds, with some fifty checks: a thread that trains is mostly in a backward pass."""

MARGIN_S: Final = 0.25
"""Time in seconds by which the reading may exceed its budget: the clock is checked between reads of nodes."""

_SERVERS: Final = frozenset({"pytest_rerunfailures", "execnet"})
"""Packages of the test runners' servers: one counts attempts, the other passes the messages of pytest-xdist."""

_WAITING: Final = frozenset({"threading", "socket", "queue", "selectors"})
"""Modules of the standard library in which such a thread waits, and in which it began."""

_STEP_S: Final = 0.0005
_STEPS: Final = 7
"""Waits grow by a step up to this many, to stay out of phase with a training thread's passes."""
_MOST_LOOKS: Final = 400
"""Limit of checks in `WAIT_S` if a test has stopped the clock (freezegun). A check takes 3 switch intervals (15 ms)."""
_MOST_SPINS: Final = 2_000_000
"""Limit of clock readings while other threads run, for the same reason: a tenth of a second or more."""
_HALF_A_TICK_S: Final = 5e-7
"""Compensates that Python truncates the switch interval to whole microseconds."""


@contextlib.contextmanager
def no_backward_running(budget_s: float) -> Iterator[bool]:
    """Keep other threads from beginning a backward pass within the context; yield whether none is running.

    If it yields False, read no graph. `sys.setswitchinterval` keeps the lock for `budget_s` seconds; the reading must
    not release it: no sleep, no input or output, no user code.
    """
    if not _may_begin_one():
        yield not _any_in_engine()
        return
    interval = sys.getswitchinterval() + _HALF_A_TICK_S
    end = perf_counter() + WAIT_S
    try:
        for attempt in range(_MOST_LOOKS):
            sys.setswitchinterval(budget_s + MARGIN_S)
            _let_through(interval)
            if not _any_in_engine():
                yield True
                return
            sys.setswitchinterval(interval)
            if perf_counter() >= end:
                break
            sleep(_STEP_S * (1 + attempt % _STEPS))
        yield False
    finally:
        sys.setswitchinterval(interval)


def _may_begin_one() -> bool:
    """Return whether another thread runs that may begin a backward pass: any but the test runners' own servers."""
    me = get_ident()
    return any(thread != me and not _is_server(frame) for thread, frame in sys._current_frames().items())


def _is_server(innermost: FrameType) -> bool:
    """Return whether a thread has called nothing but the code of a server that runs no test, and what that waits in."""
    packages: set[str] = set()
    frame: FrameType | None = innermost
    while frame is not None:
        name = frame.f_globals.get("__name__")
        packages.add(name.partition(".")[0] if type(name) is str else "")
        frame = frame.f_back
    return not packages.isdisjoint(_SERVERS) and packages <= _SERVERS | _WAITING


def _let_through(interval: float) -> None:
    end = perf_counter() + 3 * interval
    for _ in range(_MOST_SPINS):
        if perf_counter() >= end:
            return


def _any_in_engine() -> bool:
    """Return whether a thread is in torch's autograd package. For C++ threads' passes, a Python thread waits there."""
    path = (safe_access.module_dict(torch_module("torch.autograd")) or {}).get("__file__")
    if type(path) is not str:
        return False
    package = str(Path(path).parent) + os.sep
    return any(_is_in(package, frame) for frame in sys._current_frames().values())


def _is_in(package: str, innermost: FrameType) -> bool:
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_code.co_filename.startswith(package):
            return True
        frame = frame.f_back
    return False
