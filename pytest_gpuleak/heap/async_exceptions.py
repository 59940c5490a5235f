"""Exceptions raised in another thread (``PyThreadState_SetAsyncExc``), and how one is taken back without a trace."""

from __future__ import annotations

import threading
from typing import Final

TURNS_UNTIL_ARRIVED: Final = 1_000_000
"""Turns of a loop after which an exception that was raised in this thread has arrived: at its first, as a rule."""


class _ArrivedError(BaseException):
    """Takes the place of an exception that is not to arrive any more."""


def raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an exception in a thread when it next runs Python code, in place of one that has not arrived.

    Args:
        thread: the thread's identifier.
        error: the exception.
    """
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def take_back() -> None:
    """Take back an exception that has not arrived in this thread, and the mark that any thread's has left.

    None in its place would leave the interpreter marked: it would look for the exception at each call of a function for
    the rest of the session, and Python 3.11 loops for ever there while a profile function is set (Python/ceval.c,
    DO_TRACING). One that arrives takes the mark away. A thread for which another one waits sets it again when it runs
    (Python/ceval_gil.h, ``take_gil``).
    """
    try:
        raise_in(threading.get_ident(), _ArrivedError)
        for _ in range(TURNS_UNTIL_ARRIVED):
            pass
    except _ArrivedError:
        pass
