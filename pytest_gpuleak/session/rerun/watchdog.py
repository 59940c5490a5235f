"""Stop work that takes too long, and end the process where nothing stops it. Loaded with the first re-run.

1. After `limit_s` an exception is raised in the function: by a signal of its own in the main thread, by
   ``PyThreadState_SetAsyncExc`` in any other thread and where the signal is taken. It is repeated, since a bare
   ``except:`` may swallow it.
2. `GRACE_S` later, or as much later as the limit was long, the function is assumed to hang in C, where no exception
   arrives. A thread, which needs the interpreter's lock for this, calls `on_hang` and ends the process with status 1.
3. `LOCK_GRACE_S` after that, the lock was never released. A C thread of `faulthandler` (CPython,
   Modules/faulthandler.c, ``faulthandler_thread``) writes the stacks to stderr and ends the process with status 1. It
   cannot print our text, so the watching thread has a frame whose file name is that text. The test's stack has none:
   TensorFlow keeps each code object that it meets in a stack, and with a new one 50 to 300 KiB a re-run (2.21).

The signal is not SIGALRM and there is no interval timer: the test and pytest-timeout may use both.
"""

from __future__ import annotations

import _thread
import contextlib
import dataclasses
import faulthandler
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _pytest
import pluggy

from pytest_gpuleak.heap.async_exceptions import raise_in, take_back
from pytest_gpuleak.heap.long_work import LONG_WORK_S, TELL_EVERY_S
from pytest_gpuleak.heap.threads import await_end
from pytest_gpuleak.model.source_files import PACKAGE
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.session.rerun.unseen.output import open_stderr

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

GRACE_S = 10.0
"""Minimum seconds that an exception is given to end the work. Long, since ending the session loses later tests."""
LOCK_GRACE_S = 5.0
"""Seconds beyond the grace after which the interpreter's lock is assumed to be held for good."""
BEGIN_S = 0.1
"""Seconds that the watching thread is given to begin."""
END_S = 30.0
"""Seconds that writing the reports may take when the session is ended."""
STEP_S = 0.25
"""Minimum seconds between two tries to stop the work; a quarter of the limit where that is more."""
POLITE_TRIES = 3
"""Tries that do nothing while pytest's own code runs: an exception there may leave an incomplete teardown behind."""
TEXT_LIMIT = 400
"""Characters of the text in the frame's file name: faulthandler writes 500 (``MAX_STRING_LENGTH``)."""

_SIGNALS = ("SIGVTALRM", "SIGUSR2", "SIGUSR1", "SIGXCPU", "SIGALRM", "SIGBREAK")
"""Signals to take, after the rarely used real-time signals: the first without a handler."""
_HARNESS = (PACKAGE, *(str(Path(str(module.__file__)).parent) + os.sep for module in (_pytest, pluggy)))


class CannotWatchError(RuntimeError):
    """Raised before the work begins, if no thread could be started to watch it."""


def watch(
    call: Callable[[], object],
    limit_s: float,
    error: type[BaseException],
    on_hang: Callable[[FrameType | None, int], object],
    text: str,
    rearm: Callable[[], object] = int,
    tell: Callable[[float], object] | None = None,
) -> bool:
    """Call a function, and tell whether it had to be stopped after `limit_s` seconds. What it raises is passed on.

    It is stopped by an `error`, created without arguments, which nothing else raises. Where that does not help,
    `on_hang` is called with the innermost frame of the function and a descriptor of the process's stderr, and the
    process ends with status 1; `text` is the line to write where not even that is possible. While it takes long, `tell`
    is called with the seconds so far. Both are called in a thread of the watchdog. `rearm` is called at the end, since
    the process's single timer of `faulthandler` may have been set before. Raises CannotWatchError before the call.
    """
    watchdog = _Watchdog(call, limit_s, error, on_hang, text, tell)
    try:
        try:
            watchdog.run()
        finally:
            watchdog.disarm()
    except BaseException as raised:
        watchdog.disarm()  # an error raised in another thread than the main thread may arrive late
        if type(raised) is not error:
            raise
    finally:
        rearm()
    return watchdog.stopped


@dataclasses.dataclass(eq=False, repr=False)
class _Watchdog:
    call: Callable[[], object]
    limit_s: float
    error: type[BaseException]
    on_hang: Callable[[FrameType | None, int], object]
    text: str
    tell: Callable[[float], object] | None

    stopped = _armed = _over = _stoppable = _asynchronous = False
    _tries = _watcher = 0

    def __post_init__(self) -> None:
        self._thread = _thread.get_ident()
        self._done = _thread.allocate_lock()
        self._begun = _thread.allocate_lock()
        self._gone = _thread.allocate_lock()
        self._signal: int | None = None
        self._previous: Any = None
        self._handler: Any = self._on_signal  # one object, to distinguish it from the test's handlers
        self._mask: set[Any] = set()
        self._stderr = open_stderr()
        self._status = os.fstat(self._stderr)

    def run(self) -> None:
        self._arm()
        try:
            self._stoppable = True
            self.call()
        finally:
            self._stoppable = False

    def _arm(self) -> None:
        for lock in (self._done, self._begun, self._gone):
            lock.acquire()
        # Not `threading.Thread`: a test may count the threads known to that module.
        try:
            self._watcher = _thread.start_new_thread(_named(self.text), (self._watch,))
        except RuntimeError:
            os.close(self._stderr)
            raise CannotWatchError("no thread could be started to watch it") from None
        self._armed = True
        self._install()
        with contextlib.suppress(RuntimeError):  # no C thread either: the two other steps remain
            ends_after_s = self.limit_s + self._grace_s() + LOCK_GRACE_S
            faulthandler.dump_traceback_later(ends_after_s, exit=True, file=self._stderr)
        self._begun.acquire(timeout=BEGIN_S)  # the work may keep the interpreter's lock from its start

    def disarm(self) -> None:
        """May be called twice."""
        self._stoppable = False
        if not self._armed:
            return
        if self._done.locked():
            self._done.release()
        while not self._over:
            # Returns at once, unless the process is being ended, or the thread was before its first line.
            if not self._gone.acquire(timeout=0.1) and self._watcher not in sys._current_frames():
                break
        await_end(self._watcher)
        self._armed = False
        faulthandler.cancel_dump_traceback_later()
        if self._asynchronous:
            take_back(self.error)
        if self._signal is not None:
            self._uninstall(self._signal)
        with contextlib.suppress(OSError):
            # The test may have closed it, and another file may have reused its number.
            if os.path.samestat(os.fstat(self._stderr), self._status):
                os.close(self._stderr)
        # The handler refers to this object: the cycle would keep the function alive until the next collection.
        self._handler, self.call, self.tell, self.on_hang = None, int, None, lambda _frame, _stderr: None

    def _install(self) -> None:
        if self._thread != threading.main_thread().ident:
            return  # handlers run only in the main thread
        if hasattr(signal, "pthread_sigmask"):
            self._mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        self._signal = _free_signal(self._mask)
        if self._signal is None:
            return
        try:
            self._previous = signal.signal(self._signal, self._handler)
        except (ValueError, OSError):  # the main thread of a subinterpreter; a signal that libc keeps to itself
            self._signal = None

    def _uninstall(self, number: int) -> None:
        if self.stopped and hasattr(signal, "pthread_sigmask"):
            # A stopped call had no time to unblock signals. A pending signal of ours arrives here, while there is a
            # handler.
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        if signal.getsignal(number) is self._handler:
            signal.signal(number, self._previous)

    def _grace_s(self) -> float:
        return max(GRACE_S, self.limit_s)

    def _watch(self) -> None:
        """Wait for the end of the call, in a thread of its own. Reads no clock: a test may have replaced it."""
        try:
            self._begun.release()
            if self._ends_in_time():
                return
            self.stopped = True
            left, step = self._grace_s(), max(STEP_S, self.limit_s / 4)
            while left > 0:
                self._interrupt()
                if self._done.acquire(timeout=min(step, left)):
                    return
                left -= step
            self._end()
        except BaseException:  # noqa: BLE001 - a fault of ours must not leave a run that hangs
            os._exit(1)
        finally:
            self._over = True
            self._gone.release()

    def _ends_in_time(self) -> bool:
        if self.tell is None:
            return self._done.acquire(timeout=self.limit_s)
        waited, wait = 0.0, LONG_WORK_S
        while waited < self.limit_s:
            wait = min(wait, self.limit_s - waited)
            if self._done.acquire(timeout=wait):
                return True
            waited, wait = waited + wait, TELL_EVERY_S
            self.tell(waited)
        return False

    def _interrupt(self) -> None:
        self._tries += 1
        if self._signal is not None and signal.getsignal(self._signal) is self._handler:
            # The first wakes a system call; the second arrives where the thread has blocked all signals.
            if hasattr(signal, "pthread_kill"):
                with contextlib.suppress(OSError):
                    signal.pthread_kill(self._thread, self._signal)
            if self._tries > 1 or not hasattr(signal, "pthread_kill"):
                _thread.interrupt_main(self._signal)  # type: ignore[arg-type] # a real-time signal has no name
        elif self._may_raise(sys._current_frames().get(self._thread)):
            self._asynchronous = True
            raise_in(self._thread, self.error)

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        if self._may_raise(frame):
            raise self.error

    def _may_raise(self, frame: FrameType | None) -> bool:
        if not self._stoppable:
            return False
        return self._tries > POLITE_TRIES or frame is None or not frame.f_code.co_filename.startswith(_HARNESS)

    def _end(self) -> None:
        try:
            # From here on the writing of the reports is bounded.
            with contextlib.suppress(RuntimeError):
                faulthandler.dump_traceback_later(END_S, exit=True, file=self._stderr)
            self.on_hang(sys._current_frames().get(self._thread), self._stderr)
        finally:
            os._exit(1)


def describe_place(frame: FrameType | None, is_user_file: Callable[[str], bool], shorten: Callable[[str], str]) -> str:
    """Describe where a thread is: the user's innermost line, and the innermost of all."""
    if frame is None:
        return "an unknown place"
    innermost = _line(frame, shorten)
    user: FrameType | None = frame
    while user is not None and not is_user_file(user.f_code.co_filename):
        user = user.f_back
    return innermost if user is None or user is frame else f"{_line(user, shorten)}, which is in {innermost}"


def _line(frame: FrameType, shorten: Callable[[str], str]) -> str:
    return clean_text(f"{shorten(frame.f_code.co_filename)}:{frame.f_lineno} ({frame.f_code.co_name})", TEXT_LIMIT)


def _free_signal(blocked: set[Any]) -> int | None:
    """Return a signal without a handler, which nothing sends, since by default it ends the process."""
    names = [getattr(signal, name, None) for name in _SIGNALS]
    real_time = range(signal.SIGRTMAX - 4, signal.SIGRTMIN + 4, -1) if hasattr(signal, "SIGRTMAX") else ()
    for number in (*real_time, *names):
        # None: a handler that was installed from C.
        if number is not None and number not in blocked and signal.getsignal(number) is signal.SIG_DFL:
            return int(number)
    return None


def _named(text: str) -> Callable[[Callable[[], object]], object]:
    """Return a function that calls another, with `text` as its file name, which faulthandler prints."""

    def hangs(call: Callable[[], object]) -> object:
        return call()

    # In angle brackets, since coverage.py looks for every other file.
    hangs.__code__ = hangs.__code__.replace(co_filename=f"<{clean_text(text, TEXT_LIMIT)}>")
    return hangs
