"""Deliver signals again whose handler's exception the garbage collector swallowed.

CPython drops exceptions of callbacks (``invoke_gc_callback``, Modules/gcmodule.c: ``PyErr_WriteUnraisable``). If our
entry of ``gc.callbacks`` is the next Python code in the main thread, Ctrl-C or pytest-timeout's exception is lost.
`sys.unraisablehook` gets the exception with the handler's frame, which tells the signal. The last callback of the same
collection, in C, sets it again: a timer or thread might fire in the next collection.
"""

from __future__ import annotations

import functools
import gc
import signal
import sys
import traceback
import types
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.heap.interpreter import c_function

if TYPE_CHECKING:
    from collections.abc import Callable


class LostSignals:
    """Wrap `sys.unraisablehook`, and deliver again what was lost in our entries of ``gc.callbacks``, `callback` first.

    `callback` is a bound method with an argument ``phase``, and calls `go_on` first while `lost` has signals.
    """

    def __init__(self, callback: Callable[..., object]) -> None:
        self._callback = callback
        self.others: list[Callable[..., object]] = []
        """Further callbacks of ours, with an argument ``phase``."""
        self.hook: Callable[[Any], object] | None = None
        """Our hook that was last seen in `sys.unraisablehook`, to be compared by identity."""
        self.lost: list[int] = []
        """The signals to deliver again, until the next collection begins."""
        self._deliveries: list[Callable[..., object]] = []

    def install(self) -> None:
        """Wrap the current hook. Safe to call again, also after others have set theirs."""
        current = sys.unraisablehook
        # A hook that replaced ours may call ours: it gets one of its own, which does not call it.
        self.hook = current if self._owner_of(current) is not None else UnraisableHook(self.handles, current).take
        sys.unraisablehook = self.hook

    def remove(self) -> None:
        """Restore the previous hook, unless another one has replaced ours."""
        owner = self._owner_of(sys.unraisablehook)
        if owner is not None:
            sys.unraisablehook = owner.previous
        self.hook = None
        self.go_on("start")

    def go_on(self, phase: str) -> None:
        """Deliver lost signals at the end of a collection (``stop``); forget them when the next begins (``start``)."""
        if phase == "stop":
            # The collector looks at the list's length at each step, so what is added now is still called.
            for number in self.lost[len(self._deliveries) :]:
                delivery = _delivery(number)
                self._deliveries.append(delivery)
                gc.callbacks.append(delivery)
            return
        for delivery in self._deliveries:
            if delivery in gc.callbacks:
                gc.callbacks.remove(delivery)
        self._deliveries.clear()
        self.lost.clear()

    def handles(self, unraisable: Any) -> bool:
        """Tell whether an exception was a handler's in a callback of ours. Then its signal is delivered again."""
        callback = unraisable.object
        if callback != self._callback and not any(one is callback for one in self.others):
            return False
        number = _signal_of(unraisable.exc_value)
        if number is None:
            return False
        self.lost.append(number)
        if _phase_of(unraisable.exc_value, callback) == "stop":
            self.go_on("stop")
        return True

    def _owner_of(self, hook: object) -> UnraisableHook | None:
        owner = _owner(hook)
        return owner if owner is not None and owner.handles == self.handles else None


class UnraisableHook:
    """A hook of ours for `sys.unraisablehook`: `take`. What it does not handle goes to the one that was there."""

    def __init__(self, handles: Callable[[Any], bool], previous: Any) -> None:
        self.handles = handles
        self.previous = previous

    def take(self, unraisable: Any) -> None:
        """Handle an exception, or pass it on."""
        if not self.handles(unraisable):
            (sys.__unraisablehook__ if self.previous is None else self.previous)(unraisable)


def unraisable_hook() -> Any:
    """Return what `sys.unraisablehook` would be without the plugin."""
    hook: Any = sys.unraisablehook
    while (owner := _owner(hook)) is not None:
        hook = owner.previous
    return hook


def _owner(hook: object) -> UnraisableHook | None:
    owner = hook.__self__ if type(hook) is types.MethodType else None
    return owner if type(owner) is UnraisableHook else None


def _delivery(number: int) -> Callable[[str, dict[str, int]], object]:
    """Return a callback of the collector that sets a signal and runs no Python code."""
    import ctypes

    # The collector passes two more arguments, which the C function ignores.
    set_signal = c_function("PyErr_SetInterruptEx", ctypes.c_int, ctypes.c_int, ctypes.py_object, ctypes.py_object)
    return functools.partial(set_signal, number)


def _phase_of(error: BaseException, callback: Any) -> str | None:
    code = getattr(callback, "__func__", callback).__code__
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is code:
            return frame.f_locals.get("phase")
    return None


def _signal_of(error: BaseException | None) -> int | None:
    codes = {frame.f_code for frame, _ in traceback.walk_tb(None if error is None else error.__traceback__)}
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if type(handler) is types.MethodType:
            handler = handler.__func__
        if type(handler) is types.FunctionType and handler.__code__ in codes:
            return int(number)
    if type(error) is KeyboardInterrupt and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return int(signal.SIGINT)  # its handler is written in C, and has no frame
    return None
