"""Raise an exception in another thread (``PyThreadState_SetAsyncExc``), and take it back without a trace.

Up to Python 3.11 a new thread has the id of the thread that started it until the system first runs it (Python/pystate.c,
``new_threadstate``; Modules/_threadmodule.c, ``thread_run``). An exception for the older of the two would end the new one
before its first line: here, a thread of the user's, or a watchdog whose end a re-run would then wait for.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import threading
from typing import Any, Final

from pytest_gpuleak.heap.interpreter import c_function
from pytest_gpuleak.heap.threads import await_end, pause

TURNS_UNTIL_ARRIVED: Final = 1_000_000
"""Loop iterations after which an exception that was raised in this thread has arrived; usually one is enough."""

BEGIN_S: Final = 0.05
"""Seconds that threads which this one has started are given to begin, where an exception might end them."""

CLEAR_S: Final = 1.0
"""Seconds that clearing the interpreter's mark may take; 0.1 ms is usual."""


class _ArrivedError(BaseException):
    """Replaces an exception that must not arrive any more."""


def raise_in(thread: int, error: type[BaseException]) -> bool:
    """Raise an exception in a thread when it next runs Python code. It replaces one that has not arrived yet.

    Return False where the interpreter cannot (PyPy): a hanging re-run then ends by the watchdog's later steps.
    """
    import ctypes

    if not hasattr(ctypes, "pythonapi"):
        return False
    _set_exception()(thread, ctypes.py_object(error))
    return True


@functools.cache
def _set_exception() -> Any:
    # Kept: one that was made for each call would stay in a cycle with the traceback of the exception that it has set.
    import ctypes

    return c_function("PyThreadState_SetAsyncExc", ctypes.c_int, ctypes.c_ulong, ctypes.py_object)


def take_back(error: type[BaseException]) -> None:
    """Take back an `error` that was raised in this thread and has not arrived, and clear the interpreter's mark.

    Replacing the exception by None would leave the mark, and Python 3.11 loops forever there under a profile function
    (Python/ceval.c, DO_TRACING). An exception that arrives clears it; other threads set their own again
    (Python/ceval_gil.h, ``take_gil``).
    """
    with contextlib.suppress(error):
        pause(BEGIN_S)
    with contextlib.suppress(error):
        _arrive()


def clear_mark() -> bool:
    """Clear the interpreter's mark that an exception waits in some thread; whether it could be done.

    In a thread of its own, since that one has started no other.
    """
    cleared: list[bool] = []
    ended = _thread.allocate_lock()
    ended.acquire()

    def clear() -> None:
        try:
            _arrive()
            cleared.append(True)
        finally:
            ended.release()

    try:
        thread = _thread.start_new_thread(clear, ())
    except RuntimeError:  # no more threads can be started
        return False
    ended.acquire(timeout=CLEAR_S)
    await_end(thread)
    return bool(cleared)


def _arrive() -> None:
    """Raise an exception in this thread, and wait until it has arrived."""
    try:
        turns = TURNS_UNTIL_ARRIVED if raise_in(threading.get_ident(), _ArrivedError) else 0
        for _ in range(turns):
            pass
    except _ArrivedError:
        pass
