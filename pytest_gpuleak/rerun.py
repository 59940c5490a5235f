"""Running a test again, within its own teardown, so that nobody notices.

By then capture, logging and timeouts of the teardown have been left, and its report is not logged yet. What a test
run changes beside its own doing (random generators, working directory, environment, warnings, captured output,
recorded properties, `sys.last_exc`) is put back as it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import threading
import types
import warnings
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.keepsakes import stop_timer
from pytest_gpuleak.randomness import keep_random_states

if TYPE_CHECKING:
    from collections.abc import Iterator

LAST_ERROR_NAMES = ("last_type", "last_value", "last_traceback", "last_exc")


class RerunTimeout(BaseException):
    """Raised in a re-run that takes too long.

    Not an Exception: a test's own ``except Exception`` must not swallow it.
    """


@dataclasses.dataclass(frozen=True)
class RerunResult:
    """How a re-run went.

    Attributes:
        passed: whether setup, call and teardown passed, as they did the first time.
        why: in a few words, what went otherwise; empty if passed.
        duration_s: seconds it took.
        timed_out: whether it was stopped for taking too long.
    """

    passed: bool
    why: str
    duration_s: float
    timed_out: bool = False


def run_again(item: pytest.Item, nextitem: pytest.Item | None, limit_s: float, tracing: Any) -> RerunResult:
    """Run setup, call and teardown of a test once more; nothing is logged.

    Args:
        item: the test; its teardown is over.
        nextitem: what the teardown was given: fixtures that the next test needs stay.
        limit_s: seconds after which the re-run is stopped, where this thread can be (main thread, POSIX).
        tracing: context manager entered around the three phases.

    Raises:
        KeyboardInterrupt: the user's own.
    """
    started = perf_counter()
    with _preserved(item), _silenced(item), _fresh_instance(item):
        outcome = _Phases(item, nextitem)
        with _time_limit(item, limit_s, outcome), _interrupts() as interrupt:
            try:
                with tracing:
                    outcome.run()
            except RerunTimeout:
                outcome.timed_out = True
            except KeyboardInterrupt:
                if interrupt.came:
                    raise
                outcome.why = "the re-run raised KeyboardInterrupt"
            except Exception as error:  # noqa: BLE001 - tracing could not be set up or left; the first run stands
                outcome.why = f"the re-run could not be traced ({type(error).__name__})"
            finally:
                outcome.tear_down()
    if outcome.timed_out:
        outcome.why = f"the re-run took longer than {limit_s:g} s"
    return RerunResult(not outcome.why, outcome.why, perf_counter() - started, outcome.timed_out)


class _Phases:
    """The three phases of one re-run."""

    def __init__(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        self._item = item
        self._nextitem = nextitem
        self.tearing_down = False
        self.timed_out = False
        self.why = ""

    def run(self) -> None:
        if hasattr(self._item, "_initrequest"):
            self._item._initrequest()
        if self._phase("setup"):
            self._phase("call")

    def tear_down(self) -> None:
        self.tearing_down = True
        self._phase("teardown", nextitem=self._nextitem)

    def _phase(self, when: Any, **arguments: Any) -> bool:
        item = self._item
        hook = getattr(item.ihook, f"pytest_runtest_{when}")
        call = pytest.CallInfo.from_call(
            lambda: hook(item=item, **arguments), when=when, reraise=(KeyboardInterrupt, RerunTimeout)
        )
        # unittest keeps a failure on the item until a report is made: asked the same way, it is seen here too.
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        if not report.passed and not self.why:
            self.why = f"the re-run {'was skipped' if report.skipped else 'failed'} in {when}"
        return bool(report.passed)


@contextlib.contextmanager
def _fresh_instance(item: pytest.Item) -> Iterator[None]:
    """Give a method of a plain test class a new instance, and the item its old one back afterwards.

    pytest keeps the first instance until the session ends; a second run on it would see what the first left in
    ``self``.
    """
    attributes = vars(item)
    bound = attributes.get("_obj")
    if type(bound) is not types.MethodType or not isinstance(item.parent, pytest.Class):
        yield
        return
    names = ("_obj", "_instance")
    saved: dict[str, Any] = {name: attributes.pop(name) for name in names if name in attributes}
    try:
        yield
    finally:
        for name in names:
            attributes.pop(name, None)
        attributes.update(saved)


@contextlib.contextmanager
def _silenced(item: pytest.Item) -> Iterator[None]:
    """No report of the re-run is logged (sub-tests log theirs themselves), no warning of it recorded."""

    def swallow(**arguments: Any) -> None:
        del arguments

    manager = item.config.pluginmanager
    subset = manager.subset_hook_caller

    def subset_but_silent(name: str, remove_plugins: Any) -> Any:
        return swallow if name == "pytest_runtest_logreport" else subset(name, remove_plugins)

    # An item below a conftest.py of its own asks a proxy that is made anew each time, through the plugin manager.
    replacements = [
        (vars(item.config.hook), "pytest_runtest_logreport", swallow),
        (vars(manager), "subset_hook_caller", subset_but_silent),
    ]
    saved = [namespace.get(name) for namespace, name, _ in replacements]
    for namespace, name, replacement in replacements:
        namespace[name] = replacement
    try:
        with warnings.catch_warnings(record=True):
            yield
    finally:
        for (namespace, name, _), original in zip(replacements, saved, strict=True):
            if original is None:
                del namespace[name]
            else:
                namespace[name] = original


@contextlib.contextmanager
def _preserved(item: pytest.Item) -> Iterator[None]:
    """Put the process back as the first run left it."""
    restore_random = keep_random_states()
    folder, environment = _working_directory(), dict(os.environ)
    properties, sections = list(item.user_properties), list(item._report_sections)
    errors = {name: getattr(sys, name) for name in LAST_ERROR_NAMES if hasattr(sys, name)}
    try:
        yield
    finally:
        restore_random()
        if folder is not None and folder != _working_directory():
            with contextlib.suppress(OSError):
                os.chdir(folder)
        if environment != dict(os.environ):
            os.environ.clear()
            os.environ.update(environment)
        item.user_properties[:] = properties
        item._report_sections[:] = sections
        # A re-run's error left here would pin the locals of its frames.
        for name in LAST_ERROR_NAMES:
            if name in errors:
                setattr(sys, name, errors[name])
            elif hasattr(sys, name):
                delattr(sys, name)


def _working_directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - a plain string is all that is kept
    except OSError:
        return None  # the test has removed it


@contextlib.contextmanager
def _time_limit(item: pytest.Item, limit_s: float, phases: _Phases) -> Iterator[None]:
    """Stop the body after `limit_s` seconds, in place of a timeout plugin's own timer for the test.

    pytest-timeout's timer covers the whole protocol, so a re-run on the same budget would run it out, and its thread
    method ends the process. It is cancelled through its own hook; the test as such has ended in time.

    A teardown is stopped by an ordinary exception, which pytest takes for an error of one finalizer and goes on with
    the others: a fixture whose finalizer never ran would stay in pytest's cache.
    """
    stop_timer(item)
    usable = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not usable or signal.getitimer(signal.ITIMER_REAL)[0] or limit_s <= 0:
        yield
        return

    def stop(_number: int, _frame: types.FrameType | None) -> None:
        phases.timed_out = True  # whatever becomes of the exception: a bare except of the user's may swallow it
        if phases.tearing_down:
            raise TimeoutError("the re-run's teardown took too long")
        raise RerunTimeout

    previous = signal.signal(signal.SIGALRM, stop)
    # Again and again: the first may be swallowed.
    signal.setitimer(signal.ITIMER_REAL, limit_s, max(limit_s / 4, 0.5))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if previous is None else previous)


class _Interrupt:
    """Whether the user has pressed Ctrl-C."""

    came = False


@contextlib.contextmanager
def _interrupts() -> Iterator[_Interrupt]:
    """Tell the user's own Ctrl-C from a KeyboardInterrupt that the test raises."""
    interrupt = _Interrupt()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts what runs in the background so: no Ctrl-C arrives, and one that is raised is the test's.
        yield interrupt
        return
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        interrupt.came = True  # it cannot be told: taken for the user's
        yield interrupt
        return

    def note(number: int, frame: types.FrameType | None) -> None:
        interrupt.came = True
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
