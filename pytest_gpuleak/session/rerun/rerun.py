"""Run a test again, within its own teardown, once capture, logging and timeouts have been left (see `unseen`)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
import types
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.outcomes import Failed, OutcomeException

from pytest_gpuleak.engine.subject import RerunResult
from pytest_gpuleak.session.pytest_internals import fixtures_of, stop_timer
from pytest_gpuleak.session.rerun.notice import notice
from pytest_gpuleak.session.rerun.unseen.plugins import NotHiddenError
from pytest_gpuleak.session.rerun.unseen.unseen import unseen
from pytest_gpuleak.session.rerun.watchdog import CannotWatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuleak.session.rerun.hanging import Hang

BASE_LIMIT_S = 2.0
"""Seconds that any re-run may take: under load, with a large heap's collection, and fixtures set up a second time."""

MAX_LOAD = 4.0

FACTOR = 20
"""How many times as long as the first run a re-run may take: tracing slows small operations up to 17 times."""


class RerunTimeout(Failed):
    """Raised in a re-run that takes too long: no `Exception`, which a test may swallow, but an outcome of pytest's.

    After any other exception in a fixture's setup pytest keeps the fixture's finalizers, and the next test that needs
    it fails (`FixtureDef.execute`, ``assert not self._finalizers``).
    """


class TeardownTimeoutError(TimeoutError):
    """Raised in a re-run's slow teardown: an Exception, after which pytest runs the other fixtures' finalizers."""


def limit_of(expected_s: float, limit_s: float) -> float:
    """Return the seconds that a re-run may take, and its teardown again, at most the user's `limit_s`.

    Longer on a machine under load: a stopped re-run confirms nothing, and a leak would fail on some days only.
    """
    return min(limit_s, (BASE_LIMIT_S + FACTOR * expected_s) * _load())


def _load() -> float:
    """Return how many processes want to run for each core, from 1 to `MAX_LOAD`; 1 where the system does not tell."""
    try:
        return min(MAX_LOAD, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
    except (AttributeError, OSError):  # Windows
        return 1.0


def run_again(
    item: pytest.Item,
    nextitem: pytest.Item | None,
    limit_s: float,
    tracing: Any,
    hang: Hang,
    decided: Callable[[], bool] = bool,
) -> RerunResult:
    """Run setup, call and teardown of a test once more, after its teardown; nothing is logged.

    The call is left out if the setup has `decided` what the re-run was made for.
    Setup and call, within `tracing`, are stopped after `limit_s` seconds, and so is the teardown; where they cannot be,
    `hang` ends the session. Raises KeyboardInterrupt for the user's own.
    """
    # pytest-timeout's timer covers the whole protocol: a re-run would use it up, and its thread method ends the
    # process. Cancel it by its own hook, since the test itself has ended in time.
    stop_timer(item)
    outcome = _Phases(item, nextitem, tracing, decided)
    try:
        with (
            notice(item.config, f"running {item.nodeid} again to tell whether it leaks") as shown,
            unseen(item) as hidden,
            _fresh_instance(item),
        ):
            hang.before = hidden.lift
            _run_phases(outcome, hang, limit_s, None if shown is None else shown.show)
            if outcome.is_decided and not outcome.timed_out:
                outcome.why = ""  # a teardown may miss the call: a mock that was not called, say
            if hidden.failed_subtests() and not outcome.why:
                outcome.why = "a sub-test of the re-run failed"
    except (NotHiddenError, CannotWatchError) as error:
        return RerunResult(passed=False, why=str(error))
    if outcome.timed_out:
        outcome.why = f"the re-run took longer than {limit_s:.3g} s and was stopped"
    return RerunResult(not outcome.why, outcome.why, outcome.timed_out)


def _run_phases(outcome: _Phases, hang: Hang, limit_s: float, tell: Callable[[float], object] | None) -> None:
    def timed_or_not(call: Callable[[], object]) -> bool:
        try:
            return hang.watch(call, limit_s, TeardownTimeoutError, tell)
        except CannotWatchError:
            call()  # what has been set up must be torn down, watched or not
            return False

    with _interrupts() as interrupt:
        try:
            outcome.timed_out = hang.watch(outcome.run, limit_s, RerunTimeout, tell)
        except CannotWatchError:
            raise
        except KeyboardInterrupt:
            if interrupt.came:
                raise
            outcome.why = "the re-run raised KeyboardInterrupt"
        except Exception as error:  # noqa: BLE001 - tracing could not be set up or left; the first run stands
            outcome.why = f"the re-run could not be traced ({type(error).__name__})"
        finally:
            if outcome.began:
                outcome.timed_out |= timed_or_not(outcome.tear_down)
                if outcome.timed_out or outcome.why:
                    timed_or_not(outcome.mend)


@dataclasses.dataclass(eq=False, repr=False)
class _Phases:
    item: pytest.Item
    nextitem: pytest.Item | None
    tracing: Any
    decided: Callable[[], bool]
    is_decided: bool = False
    began: bool = False
    timed_out: bool = False
    why: str = ""

    def run(self) -> None:
        self.began = True
        with self.tracing:
            if hasattr(self.item, "_initrequest"):
                self.item._initrequest()
            if self._phase("setup"):
                self.is_decided = self.decided()
                if not self.is_decided:
                    self._phase("call")

    def tear_down(self) -> None:
        self._phase("teardown", nextitem=self.nextitem)

    def mend(self) -> None:
        """Restore pytest's state between two tests, after an exception that its own code does not expect."""
        for fixture in fixtures_of(self.item):
            while fixture.cached_result is None and fixture._finalizers:  # see `RerunTimeout`; so does SystemExit
                finalizer = fixture._finalizers.pop()
                with contextlib.suppress(Exception, OutcomeException):
                    finalizer()
        stack = self.item.session._setupstate.stack
        needed = set() if self.nextitem is None else set(self.nextitem.listchain())
        if any(node not in needed for node in stack):
            self.tear_down()
        # Otherwise pytest fails the next test with "previous item was not torn down properly".
        while stack and next(reversed(stack)) not in needed:
            stack.popitem()
        capture = self.item.config.pluginmanager.get_plugin("capturemanager")
        if capture is not None:
            capture.deactivate_fixture()
            capture.suspend_global_capture(in_=False)

    def _phase(self, when: Any, **arguments: Any) -> bool:
        item = self.item
        hook = getattr(item.ihook, f"pytest_runtest_{when}")
        call = pytest.CallInfo.from_call(
            lambda: hook(item=item, **arguments), when=when, reraise=(KeyboardInterrupt, RerunTimeout)
        )
        if self.is_decided and call.excinfo is not None:
            self.why = "the re-run failed in teardown"  # which nobody reads: its report would take 8 ms
            return False
        # unittest keeps a failure on the item until a report is made, so make a report.
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        if not report.passed and not self.why:
            self.why = f"the re-run {'was skipped' if report.skipped else 'failed'} in {when}"
        return bool(report.passed)


@contextlib.contextmanager
def _fresh_instance(item: pytest.Item) -> Iterator[None]:
    # pytest keeps a plain test class's first instance: a second run on it would see its changed attributes.
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


class _Interrupt:
    came = False


@contextlib.contextmanager
def _interrupts() -> Iterator[_Interrupt]:
    """Tell the user's own Ctrl-C from a KeyboardInterrupt that the test raises."""
    interrupt = _Interrupt()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell ignores SIGINT for background jobs: no Ctrl-C arrives, so a KeyboardInterrupt is the test's.
        yield interrupt
        return
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        interrupt.came = True  # cannot be distinguished: taken for the user's
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
