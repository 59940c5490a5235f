"""Run a test once more under what measures it, by the rules of a suspect's re-run. Loaded for such a run alone."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.heap.collector import collect_whole
from pytest_gpuleak.session.rerun.subject import ItemSubject

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import pytest

    from pytest_gpuleak.adapters.probe_protocol import PeakRecorder
    from pytest_gpuleak.engine.detect.peak_meter import PeakMeter
    from pytest_gpuleak.session.attempt import AttemptLog


class EndedTest(NamedTuple):
    """A test whose teardown is over; `expected_s` is what its run took, in seconds."""

    item: pytest.Item
    nextitem: pytest.Item | None
    expected_s: float


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
        with self._subject.confirming(), meter.measured_apart(recorder):
            try:
                result = self._subject.run_again(measured, lambda _: ())
            finally:
                self.release()  # the next test would have less memory
        if not result.passed:
            collect_whole()  # its traceback, in a cycle, holds its locals
        return result.why
