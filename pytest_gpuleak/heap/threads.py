"""The threads of this process that run Python code."""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


ENDS_S: Final = 0.01
"""Seconds that a thread which has nothing left to do is given to end."""
_STEP_S: Final = 1e-5


def pause(seconds: float) -> None:
    """Let other threads run for some seconds. Not by `time.sleep`, which a test may have replaced."""
    lock = _thread.allocate_lock()
    lock.acquire()
    lock.acquire(timeout=seconds)


def await_end(thread: int) -> None:
    """Wait `ENDS_S` at most for the end of a thread that has nothing left to do: the check counts the running threads."""
    for _ in range(round(ENDS_S / _STEP_S)):
        if thread not in sys._current_frames():
            return
        pause(_STEP_S)


def running_threads() -> frozenset[int]:
    """Return the identities of the threads that run Python code now."""
    return frozenset(sys._current_frames())


def others_work() -> bool:
    """Tell whether a thread runs Python code beside this one, which may make garbage at any time.

    The thread in which execnet reads what pytest-xdist sends to a worker does not count.
    """
    return any(not _is_of_execnet(frame) for frame in other_frames().values())


def other_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each other thread, by the thread's ident.

    Not by `get_ident`: where gevent has patched it, that tells the greenlet.
    """
    own = id(sys._getframe())
    frames = sys._current_frames()
    # A frame that has itself in a variable is a cycle, which stays until a collection.
    del frames[next(thread for thread, frame in frames.items() if id(frame) == own)]
    return frames


def read_kernel_file(path: str, *, whole: bool = False) -> bytes:
    """Read a small file of the kernel's, or the `whole` of one of any length, by calls that a test seldom replaces.

    Half the calls that an open file makes. Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = part = os.read(descriptor, 4096)
        while whole and part:
            part = os.read(descriptor, 4096)
            found += part
        return found
    finally:
        os.close(descriptor)


def read_stat(pid: int, thread: str = "") -> list[bytes]:
    """Return the fields of ``/proc/PID/stat`` after the program's name: the state is the first. Raises OSError.

    Those of one of its threads where `thread` has its number, else of the process.
    """
    of = f"task/{thread}/" if thread else ""
    return read_kernel_file(f"/proc/{pid}/{of}stat").rpartition(b")")[2].split()


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, zombies included, by its state. Also true where the system has no such file."""
    try:
        return read_stat(pid)[0] in (b"Z", b"X")
    except (OSError, IndexError):
        return True


def _is_of_execnet(innermost: FrameType) -> bool:
    frame: FrameType | None = innermost
    while frame is not None:
        module = dict.get(frame.f_globals, "__name__")
        if type(module) is str and module.partition(".")[0] == "execnet":
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def started_threads(enter: Callable[[], object]) -> Iterator[None]:
    """Call `enter` in each thread that the body starts, before the thread's own function, by a profile function."""
    previous: Any = threading.getprofile()

    def begin(frame: Any, event: str, argument: Any) -> None:  # noqa: ARG001 - as sys.setprofile calls it
        sys.setprofile(previous)
        with contextlib.suppress(Exception):  # an error here must not end the user's thread
            enter()

    threading.setprofile(begin)
    try:
        yield
    finally:
        if threading.getprofile() is begin:
            threading.setprofile(previous)
