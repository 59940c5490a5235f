"""Wait after each test, and put what was seen into its record. It changes no verdict and no outcome."""

from __future__ import annotations

import os
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpuleak.engine.limits import DEVICE_STEP_S, LEAST_OCCUPIED
from pytest_gpuleak.engine.settle.device_wait import compare, tell_state
from pytest_gpuleak.engine.stages import DEVICES
from pytest_gpuleak.model.devices import DeviceWait, Occupied
from pytest_gpuleak.model.outcomes import CHECKED, TestRecord, decode_test
from pytest_gpuleak.session.features.device_gate.processes import AgentFigures, ListedProcesses
from pytest_gpuleak.session.pytest_internals import stop_timer
from pytest_gpuleak.session.report_record import HUNG_ATTRIBUTE, RECORD_ATTRIBUTE, amend

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from pytest_gpuleak.adapters.nvml.readings import NvmlReading
    from pytest_gpuleak.engine.detect.counters import CounterWatch
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.settle.device_wait import Remains
    from pytest_gpuleak.session.attempt import AttemptLog
    from pytest_gpuleak.session.features.children.agents import Agents


OPTION = "--gpu-leak-wait"


class DeviceGate:
    """Keep a test's device memory that is on its way out from the next test, for `seconds` at most.

    Where no process of this run has started or ended since the last look, nothing but this process can have left memory, which
    the leak check tells: the driver is then not asked.
    """

    def __init__(self, tracker: RunTracker, attempts: AttemptLog, seconds: float, agents: Agents | None) -> None:
        self._tracker = tracker
        self._attempts = attempts
        self._seconds = seconds
        self._driver = tracker.driver
        self._figures = AgentFigures(tracker.processes, agents)
        self._listed = ListedProcesses(tracker.processes, is_worker=hasattr(attempts.config, "workerinput"))
        self._item: pytest.Item | None = None
        self._before: dict[str, NvmlReading] = {}
        self._counters: dict[tuple[str, str], int] = {}
        self._waited_s = 0.0
        self._seen: dict[str, list[Remains]] = {}

    def start(self) -> None:
        """Read the devices before the first test, and tell where nothing can be waited for."""
        tell = self._attempts.tell
        with self._attempts.guard(DEVICES):
            self._keep(self._read())
            self._tracker.processes.may_have_changed()
            if self._driver.why_absent:
                tell(f"{OPTION} has no effect: {self._driver.why_absent}")
            for device, reading in self._before.items():
                if reading.own is None:
                    tell(
                        f"{OPTION}: on {device} it cannot be told which process has what ({reading.why_absent}), "
                        f"so all that is in use is waited for while it falls{self._beside_agents()}"
                    )

    def _beside_agents(self) -> str:
        if self._figures.agents is not None:
            return ", but for what helper processes tell of themselves"
        return "; with --gpu-leak-children=agent helper processes tell what they have"

    def _read(self, *, bounded: bool = True) -> dict[str, NvmlReading]:
        return self._figures.add_to(self._driver.read(bounded=bounded))

    @pytest.hookimpl(tryfirst=True)  # plugins that repeat tests answer this hook, and end it
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Note the test, whose timer (pytest-timeout) a wait must stop."""
        self._item = item

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Wait before the teardown's report is logged, so that it has what was seen. Ctrl-C ends the wait, not the report."""
        found: TestRecord | dict[str, Any] | None = getattr(report, RECORD_ATTRIBUTE, None)
        interrupted, wait = False, None
        if found is not None and os.getpid() == self._attempts.process and not hasattr(report, HUNG_ATTRIBUTE):
            self._waited_s = 0.0
            try:
                wait = self._watch(found if isinstance(found, TestRecord) else decode_test(found))
            except KeyboardInterrupt:
                interrupted, wait = True, self._tell_rest(report.nodeid)
            if wait is not None:
                amend(report, None, device_wait=wait)
        result = yield
        if interrupted:
            raise KeyboardInterrupt
        return result

    def _watch(self, record: TestRecord) -> DeviceWait | None:
        """Wait, and return what was seen; None where there was nothing to wait for and nothing to tell."""
        if self._driver.why_absent:
            return None
        counters = self._tracker.counters
        # The frames of failed tests may be cleared soon.
        is_cleared = self._attempts.settings.clean and record.outcome not in CHECKED
        here = {} if is_cleared else in_this_process(record, counters)
        may_be_left = self._tracker.processes.may_have_changed()
        if not (here or may_be_left or self._listed.are_foreign_untold(counters.devices)):
            return None
        with self._attempts.guard(DEVICES, record.nodeid):
            before = self._before
            if here or may_be_left:
                self._wait(record.nodeid, here)
            used = {*counters.devices, *(device for device, reading in self._before.items() if reading.children)}
            return self._tell_rest(record.nodeid, self._listed.tell_foreign(before, used))
        return None

    def _wait(self, nodeid: str, here: Mapping[str, int]) -> None:
        began = perf_counter()
        before, counters_before, self._seen = self._before, self._counters, {}
        first = counters = self._tracker.counters.read_devices()
        now = self._read(bounded=False)  # most tests have left nothing
        while True:
            for device in now.keys() & before.keys():  # the driver's reader tells of one that was lost meanwhile
                let_go = first.get((device, "allocated"), 0) - counters.get((device, "allocated"), 0)
                remains = compare(
                    before[device],
                    now[device],
                    self._listed.standings(device, now[device], before[device], nodeid),
                    here=max(0, here.get(device, 0) - max(0, let_go)),
                    own_growth=self._own_growth(device, counters_before, counters),
                )
                self._seen.setdefault(device, []).append(remains)
            self._keep(now, counters)
            leaving = any(device in now and tell_state(seen) == "leaving" for device, seen in self._seen.items())
            if not leaving or self._waited_s >= self._seconds:
                return
            if self._item is not None:
                stop_timer(self._item)
            try:
                sleep(min(DEVICE_STEP_S, self._seconds - self._waited_s))
            finally:
                self._waited_s = perf_counter() - began
                self._tracker.counters.read_anew()
            now, counters = self._read(), self._tracker.counters.read_devices()

    def _own_growth(
        self, device: str, before: Mapping[tuple[str, str], int], now: Mapping[tuple[str, str], int]
    ) -> int | None:
        """Return what this process has reserved since; None where the driver's total tells nothing of what a test left."""
        if self._tracker.processes.has_owned and not self._figures.are_complete:
            return None
        return reserved_growth(device, before, now)

    def _tell_rest(self, nodeid: str, foreign: Sequence[Occupied] = ()) -> DeviceWait | None:
        """Return what was waited for and stays; None where neither is anything."""
        occupied = list(foreign)
        seen, self._seen = self._seen, {}
        with self._attempts.guard(DEVICES, nodeid):
            for device, readings in seen.items():
                if device in self._before:
                    occupied += describe_remains(device, readings[-1], self._before[device], self._listed, nodeid)
        return DeviceWait(self._waited_s, tuple(occupied)) if occupied or self._waited_s else None

    def _keep(self, readings: dict[str, NvmlReading], counters: dict[tuple[str, str], int] | None = None) -> None:
        self._before = readings
        self._counters = self._tracker.counters.read_devices() if counters is None else counters
        self._listed.note(readings)


_NOT_HERE: Final = ("cycle", "budget", "host", "process", "tracer", "recompiled")
"""Kinds of findings that are no memory which the test still has on a device: it was freed, or is another's."""


def in_this_process(record: TestRecord, counters: CounterWatch) -> dict[str, int]:
    """Return what a test has left in this process by device, from `LEAST_OCCUPIED` up.

    Of a checked test that is what its findings have, but for what a fixture that is up lets go of later. Of a test that
    failed, it is what the frameworks have allocated more than before it.
    """
    sizes: dict[str, int] = {}
    if record.outcome not in CHECKED:
        for device, figures in counters.record({}).items():
            sizes[device] = figures.get("allocated_after", 0) - figures.get("allocated_before", 0)
    else:
        for found in record.findings:
            if found.kind not in _NOT_HERE and not found.until_teardown:
                sizes[found.device] = sizes.get(found.device, 0) + found.bytes
    return {device: size for device, size in sizes.items() if size >= LEAST_OCCUPIED}


def reserved_growth(
    device: str, before: Mapping[tuple[str, str], int], now: Mapping[tuple[str, str], int]
) -> int | None:
    """Return the bytes that this process's frameworks have reserved beyond before; None if they have used none before.

    The first use brings a context, whose size no framework tells.
    """
    key = (device, "reserved")
    if key not in now:
        return 0
    return now[key] - before[key] if key in before else None


def describe_remains(
    device: str, remains: Remains, reading: NvmlReading, listed: ListedProcesses, nodeid: str
) -> list[Occupied]:
    """Return an entry for each cause that occupies `LEAST_OCCUPIED` or more of a device."""
    from pytest_gpuleak.adapters.processes.facts import is_zombie

    found: list[Occupied] = []
    if remains.here >= LEAST_OCCUPIED:
        found.append(Occupied(device, "this process", remains.here, started_by=nodeid))
    for process in remains.processes:
        if process.bytes < LEAST_OCCUPIED:
            continue
        if process.ending:
            why = "its parent has not waited for it" if is_zombie(process.pid) else "the driver still lists it"
            found.append(Occupied(device, "driver", process.bytes, process.pid, why=why))
        else:
            found.append(listed.describe(device, process.pid, process.bytes))
    if remains.unlisted >= LEAST_OCCUPIED:
        found.append(Occupied(device, "driver", remains.unlisted))
    if remains.unmatched >= LEAST_OCCUPIED:
        found.append(Occupied(device, "unknown", remains.unmatched, why=reading.why_absent))
    return found
