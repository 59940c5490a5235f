"""Run a test once more under what measures it, by the rules of a suspect's re-run. Loaded for such a run alone."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import pytest

from pytest_gpuleak.heap.collector import collect_whole
from pytest_gpuleak.session.attempt import TRACKER
from pytest_gpuleak.session.config.markers import policy_of
from pytest_gpuleak.session.rerun.subject import ItemSubject
from pytest_gpuleak.session.safeguards import shared_attempts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.probe_protocol import PeakRecorder
    from pytest_gpuleak.engine.detect.peak_meter import PeakMeter
    from pytest_gpuleak.session.attempt import AttemptLog


class EndedTest(NamedTuple):
    """A test whose teardown is over; `expected_s` is what its run took, in seconds."""

    item: pytest.Item
    nextitem: pytest.Item | None
    expected_s: float


class _Stages:
    """Tells a recorder which stage of the re-run begins."""

    def __init__(self, recorder: PeakRecorder) -> None:
        self._recorder = recorder

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self._recorder.stage("setup")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        self._recorder.stage("call")


class MeasuredRun:
    """A re-run of a test for a `purpose`, which a notice tells. `why_not` has why there is none; empty: there is."""

    def __init__(self, test: EndedTest, attempts: AttemptLog, purpose: str) -> None:
        self._subject = ItemSubject(*test, attempts, contextlib.nullcontext, lambda _: (), purpose)
        why = self._subject.why_not_again() if attempts.policy.confirm else "confirm is 0"
        self.why_not = f"the test was not run again, since {why}" if why else ""
        self.release = self._subject.release
        """Releases what the first run's fixtures hold, which the re-run could not have."""

    def run(self, meter: PeakMeter, recorder: PeakRecorder, measured: AbstractContextManager[object]) -> str:
        """Run the setup and the call within `measured`; return why it did not pass, or an empty text."""
        manager, stages = self._subject.item.config.pluginmanager, _Stages(recorder)
        manager.register(stages)
        with self._subject.confirming(), meter.measured_apart(recorder):
            try:
                result = self._subject.run_again(measured, lambda _: ())
            finally:
                self.release()  # the next test would have less memory
                manager.unregister(stages)
        if not result.passed:
            collect_whole()  # its traceback, in a cycle, holds its locals
        return result.why


def running_attempts(item: pytest.Item) -> AttemptLog:
    """Return the run's log of attempts, of which the test's is under way."""
    attempts = shared_attempts(item.config)
    if attempts.nodeid != item.nodeid:
        attempts.begin(item.nodeid, policy_of(item, attempts.settings))
    return attempts


@contextlib.contextmanager
def between_tests(item: pytest.Item) -> Iterator[AttemptLog]:
    """Keep a re-run out of the leak check, which has judged the test and is yet to begin the next one."""
    attempts, tracker = running_attempts(item), item.config.stash.get(TRACKER, None)
    if tracker is not None:
        tracker.begin_run()
    try:
        yield attempts
    finally:
        if tracker is not None:
            tracker.end_test()
            tracker.counters.read_anew()
        attempts.attempt = None
