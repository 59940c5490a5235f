"""Run a test again, within its own teardown, once capture, logging and timeouts have been left (see `unseen`)."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.outcomes import Failed, OutcomeException

from pytest_gpuleak.engine.subject import RerunResult
from pytest_gpuleak.session.pytest_internals import fixtures_of, stop_timer
from pytest_gpuleak.session.rerun.notice import notice
from pytest_gpuleak.session.rerun.unseen.plugins import NotHiddenError
from pytest_gpuleak.session.rerun.unseen.unseen import unseen
from pytest_gpuleak.session.rerun.watchdog import CannotWatchError, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType

    from pytest_gpuleak.session.rerun.hanging import Hang
    from pytest_gpuleak.session.rerun.unseen.restoring import Postponed

LEAST_LIMIT_S = 10.0
"""Seconds that any re-run may take, where the user's limit is not lower: ten thousand times what most tests take."""

FIRST_RUNS = 100
"""How many times as long as the first run a re-run may take: tracing slows small operations up to 17 times."""


class RerunTimeout(Failed):
    """Raised in a re-run that takes too long: no `Exception`, which a test may swallow, but an outcome of pytest's.

    After any other exception in a fixture's setup pytest keeps the fixture's finalizers, and the next test that needs
    it fails (`FixtureDef.execute`, ``assert not self._finalizers``).
    """


class TeardownTimeoutError(TimeoutError):
    """Raised in a re-run's slow teardown: an Exception, after which pytest runs the other fixtures' finalizers."""


def limit_of(first_run_s: float, limit_s: float) -> float:
    """Return the seconds after which a re-run is taken to hang, and its teardown again; at most the user's `limit_s`.

    A function of the policy and the test's own first run alone, and so much longer than that run that a busy machine
    does not matter: a test that hangs, since what it waits for came once, costs these seconds, and nothing is told from
    how long another takes.
    """
    return min(limit_s, max(LEAST_LIMIT_S, FIRST_RUNS * first_run_s))


def run_again(rerun: Rerun, limit_s: float, hang: Hang) -> RerunResult:
    """Run setup, call and teardown of a test once more, after its teardown; nothing is logged.

    Setup and call, within the tracing, are stopped after `limit_s` seconds, and so is the teardown; where they cannot
    be, `hang` ends the session. Raises KeyboardInterrupt for the user's own.
    """
    # pytest-timeout's timer covers the whole protocol: a re-run would use it up, and its thread method ends the
    # process. Cancel it by its own hook, since the test itself has ended in time.
    stop_timer(rerun.item)
    try:
        with contextlib.ExitStack() as stack:
            failed_subtests = _hide(rerun, hang, stack)
            rerun.run(limit_s, hang)
            if failed_subtests() and not rerun.why:
                rerun.why = "a sub-test of the re-run failed"
    except (NotHiddenError, CannotWatchError) as error:
        return RerunResult(passed=False, why=str(error))
    if rerun.timed_out:
        rerun.why = f"the re-run took longer than {limit_s:.3g} s and was stopped"
    return RerunResult(not rerun.why, rerun.why)


def tear_down_wider(rerun: Rerun, limit_s: float, hang: Hang) -> None:
    """Tear down the wider fixtures that re-runs have left set up. What they raise is dropped: their first teardown is reported."""
    with contextlib.suppress(Exception, OutcomeException):
        try:
            with contextlib.ExitStack() as stack:
                _hide(rerun, hang, stack)
                rerun.end(rerun.finish_wider, limit_s, hang)
        except NotHiddenError:
            rerun.finish_wider()  # else the next test fails with "previous item was not torn down properly"


def _hide(rerun: Rerun, hang: Hang, stack: contextlib.ExitStack) -> Callable[[], int]:
    """Have the terminal tell of it, and nothing else see it, within the stack; return what counts the sub-tests that have failed."""
    item = rerun.item
    hang.notice = stack.enter_context(notice(item.config, f"running {item.nodeid} again {rerun.purpose}"))
    failed_subtests, hang.lift = stack.enter_context(unseen(item, rerun.postponed))
    return failed_subtests


@dataclasses.dataclass(eq=False, repr=False)
class Rerun:
    """A run of a test within `tracing`, for a `purpose` that a notice tells.

    The call is left out if the setup has `decided` what it is made for. `postponed` is restored by the caller. The wider
    fixtures that it uses are left set up where they are to `stay` for the next run.
    """

    item: pytest.Item
    nextitem: pytest.Item | None
    tracing: AbstractContextManager[object]
    decided: Callable[[], bool] | None
    purpose: str
    postponed: Postponed
    stay: Callable[[], bool] = lambda: False

    timed_out = _began = _is_decided = False
    why = ""

    def run(self, limit_s: float, hang: Hang) -> None:
        """Run it under the watchdog. What was set up is torn down, whatever happens; `why` tells if it did not pass."""
        with _interrupts() as interrupts:
            try:
                self.timed_out = watch(self._set_up_and_call, limit_s, RerunTimeout, hang)
            except CannotWatchError:
                raise
            except KeyboardInterrupt:
                if interrupts:
                    raise
                self.why = "the re-run raised KeyboardInterrupt"
            except Exception as error:  # noqa: BLE001 - tracing could not be set up or left; the first run stands
                self.why = f"the re-run could not be traced ({type(error).__name__})"
            finally:
                if self._began:
                    self.end(self._tear_down, limit_s, hang)
                    if self.timed_out or self.why:
                        self.end(self._mend, limit_s, hang)
        if self._is_decided and not self.timed_out:
            self.why = ""  # a teardown may miss the call: a mock that was not called, say

    def end(self, part: Callable[[], None], limit_s: float, hang: Hang) -> None:
        """Take a step of the teardown under the watchdog."""
        began = False

        def begin() -> None:
            nonlocal began
            began = True
            part()

        try:
            self.timed_out |= watch(begin, limit_s, TeardownTimeoutError, hang)
        except Exception:
            if began:
                raise
            part()  # what has been set up must be torn down, watched or not: it ends what the test has replaced, too

    def _set_up_and_call(self) -> None:
        self._began = True
        with self.tracing:
            if hasattr(self.item, "_initrequest"):
                self.item._initrequest()
            if self._passes("setup"):
                self._is_decided = self.decided is not None and self.decided()
                if not (self._is_decided or self.item.config.getoption("setuponly", default=False)):
                    self._passes("call")

    def _tear_down(self) -> None:
        stay = self.stay() and not (self.timed_out or self.why)
        # Not the test itself: pytest would take it for the same one, which need not be torn down.
        self._passes("teardown", nextitem=copy.copy(self.item) if stay else self.nextitem)

    def finish_wider(self) -> None:
        """Tear down the wider fixtures that were to `stay`."""
        # Not by the hook: without a setup before it, pytest's logging plugin fails in it (`caplog_records_key`).
        capture = self.item.config.pluginmanager.get_plugin("capturemanager")
        if capture is not None:
            capture.resume_global_capture()
        try:
            self.item.session._setupstate.teardown_exact(self.nextitem)
        finally:
            if capture is not None:
                capture.suspend_global_capture(in_=False)
                capture.read_global_capture()

    def _mend(self) -> None:
        """Restore pytest's state between two tests, after an exception that its own code does not expect."""
        for fixture in fixtures_of(self.item):
            while fixture.cached_result is None and fixture._finalizers:  # see `RerunTimeout`; so does SystemExit
                finalizer = fixture._finalizers.pop()
                with contextlib.suppress(Exception, OutcomeException):
                    finalizer()
        stack = self.item.session._setupstate.stack
        needed = set() if self.nextitem is None else set(self.nextitem.listchain())
        if any(node not in needed for node in stack):
            self._tear_down()
        # Otherwise pytest fails the next test with "previous item was not torn down properly".
        while stack and next(reversed(stack)) not in needed:
            stack.popitem()
        capture = self.item.config.pluginmanager.get_plugin("capturemanager")
        if capture is not None:
            capture.deactivate_fixture()
            capture.suspend_global_capture(in_=False)

    def _passes(self, when: Any, **arguments: Any) -> bool:
        item = self.item
        hook = getattr(item.ihook, f"pytest_runtest_{when}")
        call = pytest.CallInfo.from_call(
            lambda: hook(item=item, **arguments), when=when, reraise=(KeyboardInterrupt, RerunTimeout)
        )
        if self._is_decided and call.excinfo is not None:
            self.why = "the re-run failed in teardown"  # which nothing reads: its report would take 8 ms
            return False
        # unittest keeps a failure on the item until a report is made, so make a report.
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        if not report.passed and not self.why:
            self.why = f"the re-run {'was skipped' if report.skipped else 'failed'} in {when}"
        return bool(report.passed)


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Note the user's own Ctrl-C in a list, to tell it from a KeyboardInterrupt that the test raises."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        # Cannot be told, and is taken for the user's. But a shell ignores SIGINT for background jobs: none arrives.
        yield [] if handler is signal.SIG_IGN else [signal.SIGINT]
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
