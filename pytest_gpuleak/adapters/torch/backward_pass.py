"""Read autograd graphs only while no other thread can be running a backward pass.

The pass drops saved tensors without the interpreter's lock. With torch 2.13, reading one at that moment crashes the
process within seconds (torch/csrc/autograd/python_variable.cpp, "PyObject preservation"). So a graph is read only where

1. every other thread waits in a function of the standard library (`_WAITS`), which is in no pass and starts none in C, or
   in `time.sleep`, which the kernel tells;
2. none of these was called by a pass: a hook that waits has the pass below it on its stack;
3. none can leave that function while the graph is read: it would need the interpreter's lock, which is kept.

A thread asks for the lock once it has waited for a switch interval. So for the reading the interval is made longer than
any reading. A thread that woke up just before has waited under the old interval: the lock is given up for two of these,
after which no such thread is left, and the stacks are looked at again. Where a thread does anything else, and on builds
without that lock, graphs are not read: what they hold is then unknown, which excuses growth (`engine.judge.counters`).

Threads of C++ alone (torch's own for a device) run passes for a thread of Python that waits for them in the pass. The
test runners' servers and the plugin's own threads run no test: they need not wait.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.torch.lookup import torch_module
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.threads import other_frames, pause, read_kernel_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

KEPT_S: Final = 60.0
"""Switch interval during a reading, in seconds: longer than one of as many steps as `heap.budget` gives it. A thread that
wakes up meanwhile, and then computes in Python alone, delays the reading by so much at most."""

LONGEST_INTERVAL_S: Final = 0.1
"""Longest switch interval, in seconds, that is waited for; the usual one is 5 ms. Where the user's is longer, no graph
is read beside other threads."""

# Bound before a test replaces them.
_GET_INTERVAL: Final = getattr(sys, "getswitchinterval", None)
_SET_INTERVAL: Final = getattr(sys, "setswitchinterval", None)

_TURN_S: Final = 1e-5
"""Seconds for which the lock is given up afterwards."""

_HALF_A_TICK_S: Final = 5e-7
"""Compensates that Python truncates the switch interval to whole microseconds."""

_SERVERS: Final = frozenset({"pytest_rerunfailures", "execnet", "pytest_gpuleak"})
"""Packages whose threads run no test: one counts attempts, the other passes the messages of pytest-xdist."""

_AROUND: Final = frozenset({"threading", "socket", "queue", "selectors"})
"""Modules of the standard library in which such a thread waits, and in which it began."""

_WAITS: Final = frozenset(
    {
        "concurrent.futures.thread._worker",
        "multiprocessing.connection._recv",
        "multiprocessing.connection._poll",
        "multiprocessing.connection.accept",
        "multiprocessing.popen_fork.poll",
        "multiprocessing.queues.get",
        "multiprocessing.synchronize.__enter__",
        "multiprocessing.synchronize.wait",
        "selectors.select",
        "socket.accept",
        "socket.readinto",
        "ssl.read",
        "ssl.recv",
        "subprocess._try_wait",
        "threading._wait_for_tstate_lock",
        "threading.join",
        "threading.wait",
    }
)
"""Functions that wait: for a lock, an item, a process or a connection. They call no function of the user's in C."""

_SLEEP: Final = {"x86_64": b"230 0x1 0x1 ", "aarch64": b"115 0x1 0x1 "}
"""How the kernel writes the system call of `time.sleep`, by the machine: `clock_nanosleep` on the monotonic clock up to a
point in time (Modules/timemodule.c, from Python 3.11 on). C++ sleeps by the other clock."""


@contextlib.contextmanager
def no_backward_running() -> Iterator[bool]:
    """Keep other threads from beginning a backward pass within the context; yield whether none is running.

    If it yields False, read no graph. The reading must not release the interpreter's lock: no sleep, no input or output,
    no user code.
    """
    if not _others():
        yield not _is_in_pass(sys._getframe())
        return
    if _GET_INTERVAL is None or _SET_INTERVAL is None:  # PyPy
        yield False
        return
    interval = _GET_INTERVAL() + _HALF_A_TICK_S
    if not (_all_wait() and _has_lock() and interval <= LONGEST_INTERVAL_S):
        yield False
        return
    try:
        _SET_INTERVAL(KEPT_S)
        pause(2 * interval)
        yield _all_wait()
    finally:
        _SET_INTERVAL(interval)
        pause(_TURN_S)  # a thread that woke up meanwhile waits for the lock under the long interval


def _has_lock() -> bool:
    """Tell whether one thread at a time runs Python: free-threaded builds may do without (PEP 703)."""
    enabled = getattr(sys, "_is_gil_enabled", None)
    return enabled is None or bool(enabled())


def _others() -> dict[int, FrameType]:
    """Return the innermost frames of the other threads, without the test runners' servers."""
    return {thread: frame for thread, frame in other_frames().items() if not _is_server(frame)}


def _all_wait() -> bool:
    """Tell whether no other thread does anything but wait, and this one is in no backward pass."""
    asleep = {thread: _place(frame) for thread, frame in _others().items() if not _waits(frame) and _sleeps(thread)}
    # From here on nothing gives up the lock, as reading the kernel's files did: who has slept is still at the same call.
    return not _is_in_pass(sys._getframe()) and all(
        (_waits(frame) or asleep.get(thread) == _place(frame)) and not _is_in_pass(frame)
        for thread, frame in _others().items()
    )


def _waits(frame: FrameType) -> bool:
    return f"{_module(frame)}.{frame.f_code.co_name}" in _WAITS


def _place(frame: FrameType) -> tuple[int, int]:
    return id(frame), frame.f_lasti


def _sleeps(thread: int) -> bool:
    """Tell whether a thread is in `time.sleep`; False where the kernel does not tell."""
    call = _SLEEP.get(os.uname().machine) if hasattr(os, "uname") else None
    threads = getattr(threading, "_active", {})  # `threading.enumerate` takes a lock, which may be held
    number = (safe_access.instance_dict(threads.get(thread)) or {}).get("_native_id")
    if call is None or type(number) is not int:
        return False
    try:
        return read_kernel_file(f"/proc/self/task/{number}/syscall").startswith(call)
    except OSError:
        return False


def _is_server(innermost: FrameType) -> bool:
    """Tell whether a thread has called nothing but the code of a server that runs no test, and what that waits in."""
    packages = {_module(frame).partition(".")[0] for frame in _stack(innermost)}
    return not packages.isdisjoint(_SERVERS) and packages <= _SERVERS | _AROUND


def _is_in_pass(innermost: FrameType) -> bool:
    """Tell whether a thread is in torch's autograd package: it runs a backward pass, or waits for one."""
    path = (safe_access.module_dict(torch_module("torch.autograd")) or {}).get("__file__")
    if type(path) is not str:
        return False
    package = str(Path(path).parent) + os.sep
    return any(frame.f_code.co_filename.startswith(package) for frame in _stack(innermost))


def _module(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name if type(name) is str else ""


def _stack(innermost: FrameType) -> Iterator[FrameType]:
    frame: FrameType | None = innermost
    while frame is not None:
        yield frame
        frame = frame.f_back
