"""The threads of this process that run Python code."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def running_threads() -> frozenset[int]:
    """Return the identities of the threads that run Python code now."""
    return frozenset(sys._current_frames())


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
