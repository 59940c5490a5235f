"""Stop work that takes too long, and end the process where nothing stops it. Loaded with the first re-run.

One limit, and one escalation beyond it:

1. An exception is raised in the function: by a signal of its own in the main thread, by ``PyThreadState_SetAsyncExc`` in
   any other thread and where the signal is taken. It is repeated, since a bare ``except:`` may swallow it.
2. `GRACE_S` later, or as much later as the limit was long, the function is assumed to hang in C, where no exception
   arrives. A thread, which needs the interpreter's lock for this, calls `Watched.hangs` and ends the process with status 1.
3. `LOCK_GRACE_S` after that, the lock was never released. A C thread of `faulthandler` (CPython,
   Modules/faulthandler.c, ``faulthandler_thread``) writes the stacks to stderr and ends the process with status 1. It
   cannot print our text, so the watching thread has a frame whose file name is that text. The test's stack has none:
   TensorFlow keeps each code object that it meets in a stack, and with a new one 50 to 300 KiB a re-run (2.21).

The signal is not SIGALRM and there is no interval timer: the test and pytest-timeout may use both.
"""

from __future__ import annotations

# The functions themselves, and what `signal` itself calls: what a test replaces in the modules is up until its teardown.
import _signal as signal  # type: ignore[import-not-found]
import _thread
import contextlib
import dataclasses
import os
import sys
from faulthandler import cancel_dump_traceback_later, dump_traceback_later
from pathlib import Path
from threading import main_thread
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol

import _pytest
import pluggy

from pytest_gpuleak.heap.async_exceptions import raise_in, take_back
from pytest_gpuleak.heap.long_work import LONG_WORK_S, TELL_EVERY_S
from pytest_gpuleak.heap.signals import start_without_signals
from pytest_gpuleak.heap.threads import await_end
from pytest_gpuleak.model.source_files import PACKAGE, is_user_file, shorten
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

_HARNESS = (PACKAGE, *(str(Path(str(module.__file__)).parent) + os.sep for module in (_pytest, pluggy)))


class CannotWatchError(RuntimeError):
    """Raised before the work begins, if no thread could be started to watch it."""


class Watched(Protocol):
    """What the watchdog tells of its work; `text` is the line to write where only C code can write."""

    text: str

    def takes(self, seconds: float) -> None:
        """Tell in the watchdog's thread, once a second, that the work has taken so long."""

    def hangs(self, frame: FrameType | None, stderr: int) -> None:
        """Report in the watchdog's thread that nothing stops the work, before the process ends with status 1.

        `frame` is the innermost frame of the work, `stderr` a descriptor of the process's own stderr.
        """

    def over(self) -> None:
        """Set the process's single timer of `faulthandler` again, which the watchdog has used."""


def watch(call: Callable[[], object], limit_s: float, error: type[BaseException], watched: Watched) -> bool:
    """Call a function, and tell whether it had to be stopped after `limit_s` seconds. What it raises is passed on.

    It is stopped by an `error`, created without arguments, which nothing else raises. Raises CannotWatchError before
    the call.
    """
    watchdog = _Watchdog(call, limit_s, error, watched)
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
        watched.over()
    return watchdog.stopped


@dataclasses.dataclass(eq=False, repr=False)
class _Watchdog:
    call: Callable[[], object]
    limit_s: float
    error: type[BaseException]
    watched: Watched

    stopped = _armed = _stoppable = _asynchronous = False
    _tries = _watcher = 0
    _signal: int | None = None

    def __post_init__(self) -> None:
        self._thread = _thread.get_ident()
        self._done, self._begun, self._gone = (_thread.allocate_lock() for _ in range(3))
        self._grace_s = max(GRACE_S, self.limit_s)
        self._mask: Any = ()
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
            watch = _named(self.watched.text)
            self._watcher = start_without_signals(lambda: _thread.start_new_thread(watch, (self._watch,)))
        except RuntimeError:
            os.close(self._stderr)
            raise CannotWatchError("no thread could be started to watch it") from None
        self._armed = True
        self._install()
        with contextlib.suppress(RuntimeError):  # no C thread either: the two other steps remain
            ends_after_s = self.limit_s + self._grace_s + LOCK_GRACE_S
            dump_traceback_later(ends_after_s, exit=True, file=self._stderr)
        self._begun.acquire(timeout=BEGIN_S)  # the work may keep the interpreter's lock from its start

    def disarm(self) -> None:
        """May be called twice."""
        self._stoppable = False
        if not self._armed:
            return
        if self._done.locked():
            self._done.release()
        # At once, unless the process is being ended, or the thread was before its first line.
        while not self._gone.acquire(timeout=0.1) and self._watcher in sys._current_frames():
            pass
        await_end(self._watcher)
        self._armed = False
        cancel_dump_traceback_later()
        if self._asynchronous:
            take_back(self.error)
        if self._signal is not None:
            self._uninstall(self._signal)
        with contextlib.suppress(Exception):
            # The test may have closed it, and another file may have reused its number; or replaced `os.fstat`.
            if os.path.samestat(os.fstat(self._stderr), self._status):
                os.close(self._stderr)

    def _install(self) -> None:
        if self._thread != main_thread().ident or not hasattr(signal, "pthread_kill"):
            return  # handlers run only in the main thread
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        number = _free_signal(self._mask)
        if number is not None:
            # The main thread of a subinterpreter; a signal that libc keeps to itself.
            with contextlib.suppress(ValueError, OSError):
                signal.signal(number, self._on_signal)
                self._signal = number

    def _uninstall(self, number: int) -> None:
        if self.stopped:
            # A stopped call had no time to unblock signals. A pending signal of ours arrives here, while there is a
            # handler.
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        if self._handles(number):
            signal.signal(number, signal.SIG_DFL)

    def _handles(self, number: int) -> bool:
        """Tell whether the signal is still handled here: a reference to the handler would be a cycle."""
        handler = signal.getsignal(number)
        return type(handler) is MethodType and handler.__self__ is self

    def _watch(self) -> None:
        """Wait for the end of the call, in a thread of its own. Reads no clock: a test may have replaced it."""
        try:
            self._begun.release()
            if not self._ends_in_time() and not self._stops():
                with contextlib.suppress(RuntimeError):  # from here on the writing of the reports is bounded
                    dump_traceback_later(END_S, exit=True, file=self._stderr)
                self.watched.hangs(sys._current_frames().get(self._thread), self._stderr)
                os._exit(1)
        except BaseException:  # noqa: BLE001 - a fault of ours must not leave a run that hangs
            os._exit(1)
        finally:
            self._gone.release()

    def _ends_in_time(self) -> bool:
        waited, wait = 0.0, min(LONG_WORK_S, self.limit_s)
        while not self._done.acquire(timeout=wait):
            waited += wait
            wait = min(TELL_EVERY_S, self.limit_s - waited)
            if wait <= 0:
                return False
            self.watched.takes(waited)
        return True

    def _stops(self) -> bool:
        self.stopped = True
        left, step = self._grace_s, max(STEP_S, self.limit_s / 4)
        while left > 0:
            self._interrupt()
            if self._done.acquire(timeout=min(step, left)):
                return True
            left -= step
        return False

    def _interrupt(self) -> None:
        self._tries += 1
        if self._signal is not None and self._handles(self._signal):
            # The first wakes a system call; the second arrives where the thread has blocked all signals.
            with contextlib.suppress(OSError):
                signal.pthread_kill(self._thread, self._signal)
            if self._tries > 1:
                _thread.interrupt_main(self._signal)  # type: ignore[arg-type] # a real-time signal has no name
        elif self._may_raise(sys._current_frames().get(self._thread)):
            self._asynchronous = True
            raise_in(self._thread, self.error)

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        if self._may_raise(frame):
            raise self.error

    def _may_raise(self, frame: FrameType | None) -> bool:
        polite = self._tries <= POLITE_TRIES and frame is not None and frame.f_code.co_filename.startswith(_HARNESS)
        return self._stoppable and not polite


def describe_place(frame: FrameType | None, root: str) -> str:
    """Describe where a thread is: the user's innermost line, and the innermost of all. `root` is the rootdir."""
    if frame is None:
        return "an unknown place"
    innermost = _line(frame, root)
    user: FrameType | None = frame
    while user is not None and not is_user_file(user.f_code.co_filename, root):
        user = user.f_back
    return innermost if user is None or user is frame else f"{_line(user, root)}, which is in {innermost}"


def _line(frame: FrameType, root: str) -> str:
    return clean_text(
        f"{shorten(frame.f_code.co_filename, root)}:{frame.f_lineno} ({frame.f_code.co_name})", TEXT_LIMIT
    )


def _free_signal(blocked: Any) -> int | None:
    """Return a signal without a handler, which nothing sends, since by default it ends the process.

    The highest is a real-time signal where there are any: programs hardly use them.
    """
    for number in sorted(signal.valid_signals(), reverse=True):
        # None: a handler that was installed from C.
        if number not in blocked and signal.getsignal(number) is signal.SIG_DFL:
            return int(number)
    return None


def _named(text: str) -> Callable[[Callable[[], object]], object]:
    """Return a function that calls another, with `text` as its file name, which faulthandler prints."""

    def hangs(call: Callable[[], object]) -> object:
        return call()

    # In angle brackets, since coverage.py looks for every other file.
    hangs.__code__ = hangs.__code__.replace(co_filename=f"<{clean_text(text, TEXT_LIMIT)}>")
    return hangs
