"""The threads of this process that run Python code."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def running_threads() -> frozenset[int]:
    """Identities of the threads that run Python code now; a lookup, not a thread's object."""
    return frozenset(sys._current_frames())


@contextlib.contextmanager
def started_threads(enter: Callable[[], object]) -> Iterator[None]:
    """Call `enter` in each thread that the body starts, before the thread's own function.

    By way of the profile function that `threading` gives to new threads: the first event calls `enter` and puts back
    the function that was set before, if any, so that a profiler of the user's works on.
    """
    previous: Any = threading.getprofile()

    def begin(frame: Any, event: str, argument: Any) -> None:  # noqa: ARG001 - as sys.setprofile calls it
        sys.setprofile(previous)
        with contextlib.suppress(Exception):  # the thread is the user's: what fails here must not end it
            enter()

    threading.setprofile(begin)
    try:
        yield
    finally:
        if threading.getprofile() is begin:
            threading.setprofile(previous)
