"""Reading autograd graphs only while no other thread can be running one backward.

The backward pass works without the interpreter's lock and drops what its nodes have saved as it goes. To read a saved
tensor in that moment crashes the process: ``SavedTensor.data`` looks at it without the node's mutex, and the getter of
``_saved_self`` gives a Python object to a tensor whose last other owner is just letting go
(torch/csrc/autograd/python_variable.cpp, "PyObject preservation"). Twenty lines of pure torch 2.13 do it within
seconds: one thread that trains, one that reads ``grad_fn._saved_self``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.torch.lookup import torch_module
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

WAIT_S: Final = 1.0
"""Seconds that threads are waited for: one that trains is in a backward pass for most of the time, and is looked at
some fifty times."""

MARGIN_S: Final = 0.25
"""Seconds by which the reading may outlast its budget: one node's read comes between two looks at the clock."""

_STEP_S: Final = 0.0005
_STEPS: Final = 7
"""Waits grow by a step up to this many, so that they do not keep time with the passes of a thread that trains."""
_MOST_LOOKS: Final = 400
"""Looks in `WAIT_S` at the most, should a test have stopped the clock (freezegun in a wider fixture): a look takes three
switch intervals, 5 ms each by default."""
_MOST_SPINS: Final = 2_000_000
"""Readings of the clock while threads are let through, as above: a tenth of a second or more."""
_HALF_A_TICK_S: Final = 5e-7
"""Python cuts the interval off at whole microseconds, and of 0.0001 s it gives back a little less than that."""


@contextlib.contextmanager
def no_backward_running(budget_s: float) -> Iterator[bool]:
    """Context in which no other thread begins a backward pass; it yields whether none is running one.

    Where it yields False, no graph may be read. A thread can begin one only when it gets the interpreter's lock. Where
    there are other threads, they are not to ask for it for as long as the reading may take (`sys.setswitchinterval`),
    and those that had asked before are let through first. The reading must not give the lock up by itself: no sleep,
    no input or output, no code of the user's.

    Args:
        budget_s: seconds that the reading takes at most.
    """
    if len(sys._current_frames()) == 1:
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


def _let_through(interval: float) -> None:
    """Run until threads that waited for the lock with the old interval have asked for it, and had their turn."""
    end = perf_counter() + 3 * interval
    for _ in range(_MOST_SPINS):
        if perf_counter() >= end:
            return


def _any_in_engine() -> bool:
    """Whether any thread is in torch's autograd package, and so perhaps in a backward pass.

    Threads of C++ that run a pass for a device do so for a thread of Python's, which waits for them there.
    """
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
