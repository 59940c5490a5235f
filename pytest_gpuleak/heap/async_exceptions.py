"""Raise an exception in another thread (``PyThreadState_SetAsyncExc``), and take it back without a trace."""

from __future__ import annotations

import threading
from typing import Final

TURNS_UNTIL_ARRIVED: Final = 1_000_000
"""Loop iterations after which an exception that was raised in this thread has arrived; usually one is enough."""


class _ArrivedError(BaseException):
    """Replaces an exception that must not arrive any more."""


def raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an exception in a thread when it next runs Python code. It replaces one that has not arrived yet.

    Do nothing where the interpreter cannot (PyPy): a hanging re-run then ends by the watchdog's later steps.
    """
    import ctypes

    if hasattr(ctypes, "pythonapi"):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def take_back() -> None:
    """Take back an exception that has not arrived in this thread, and clear the interpreter's mark.

    Replacing the exception by None would leave the mark, and Python 3.11 loops forever there under a profile function
    (Python/ceval.c, DO_TRACING). An exception that arrives clears it; other threads set their own again
    (Python/ceval_gil.h, ``take_gil``).
    """
    import ctypes

    if not hasattr(ctypes, "pythonapi"):
        return  # none was raised
    try:
        raise_in(threading.get_ident(), _ArrivedError)
        for _ in range(TURNS_UNTIL_ARRIVED):
            pass
    except _ArrivedError:
        pass
