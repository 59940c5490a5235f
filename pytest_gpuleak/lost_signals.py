"""Exceptions of signal handlers that the garbage collector swallows: the signal is delivered again.

A signal's handler runs when the interpreter next runs Python code in the main thread. While an epoch is open that may be
our callback of the collector (``gc.callbacks``): a signal that comes during a full collection runs its handler there, and
CPython drops what a callback raises (``invoke_gc_callback``, Modules/gcmodule.c: ``PyErr_WriteUnraisable``). A Ctrl-C or
the timeout of pytest-timeout would be lost, and a test that hangs would hang for good. `sys.unraisablehook` is told of
the exception, which has the handler's frame, and so of the signal.
"""

from __future__ import annotations

import _thread
import signal
import sys
import types
from time import sleep
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

DELAY_S = 0.005
"""Seconds after which the signal is delivered again: the collection is over by then, or the next try comes."""


class LostSignals:
    """Stands before `sys.unraisablehook`, and delivers again what was lost in a callback.

    Args:
        callback: whose exceptions the collector drops.
    """

    def __init__(self, callback: Callable[..., object]) -> None:
        self._callback = callback
        self._previous: Callable[[Any], object] | None = None
        self.hook = self._take
        """What stands in `sys.unraisablehook`: one object for good, so that it can be compared by identity."""
        self.waits_for_call = False
        """Whether the collection was asked for by a call, after which `deliver` is called."""
        self.pending = 0
        """The signal that `deliver` is to deliver; 0: none."""

    def install(self) -> None:
        """Stand before the hook that is set now. Safe to call again, also after others have set theirs."""
        if sys.unraisablehook is not self.hook:
            self._previous = sys.unraisablehook
            sys.unraisablehook = self.hook

    def remove(self) -> None:
        """Put the hook back that was there, unless another has taken the place since."""
        if sys.unraisablehook is self.hook and self._previous is not None:
            sys.unraisablehook = self._previous
        self._previous = None

    def deliver(self) -> None:
        """Deliver a signal that was lost in the collection that has just ended. Raises what its handler raises."""
        __tracebackhide__ = True  # a failure's text shows only the user's frames, as without the plugin
        number, self.pending = self.pending, 0
        if number:
            signal.raise_signal(number)

    def handles(self, unraisable: Any) -> bool:
        """Whether an exception was a handler's in our callback; then its signal is on its way again."""
        if unraisable.object != self._callback:
            return False
        number = _signal_of(unraisable.exc_value)
        if number is None:
            return False
        if self.waits_for_call:
            self.pending = number
        else:
            deliver_soon(number)
        return True

    def _take(self, unraisable: Any) -> None:
        if not self.handles(unraisable):
            previous = self._previous
            (sys.__unraisablehook__ if previous is None else previous)(unraisable)


def deliver_soon(number: int) -> None:
    """Deliver a signal in a moment, when the collector has returned: now its handler's exception would be lost again."""
    if number == getattr(signal, "SIGALRM", None) and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0:
        # Without a thread: pytest-timeout lists the threads in the failure.
        signal.setitimer(signal.ITIMER_REAL, DELAY_S)
    else:
        # Not by way of `threading`, which waits in Python code for the thread to start.
        _thread.start_new_thread(_deliver_later, (signal.Signals(number),))


def _deliver_later(number: signal.Signals) -> None:
    sleep(DELAY_S)
    _thread.interrupt_main(number)


def _signal_of(error: BaseException | None) -> int | None:
    """The signal whose handler has raised an exception, None where there is none."""
    codes = set()
    entry = None if error is None else error.__traceback__
    while entry is not None:
        codes.add(entry.tb_frame.f_code)
        entry = entry.tb_next
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if type(handler) is types.MethodType:
            handler = handler.__func__
        if type(handler) is types.FunctionType and handler.__code__ in codes:
            return int(number)
    if type(error) is KeyboardInterrupt and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return int(signal.SIGINT)  # its handler is written in C, and has no frame
    return None
