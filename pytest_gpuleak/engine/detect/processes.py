"""Processes that a test or a fixture has started and left running: whose they are, and what is said of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.processes.watch import ProcessWatch
from pytest_gpuleak.heap.collector import collect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuleak.adapters.nvml.readings import NvmlReading
    from pytest_gpuleak.adapters.processes.facts import LeftProcess
    from pytest_gpuleak.engine.stages import Guard, Stage
    from pytest_gpuleak.model.findings import Finding, FixtureRecord, Holder
    from pytest_gpuleak.model.outcomes import FixturePlace
    from pytest_gpuleak.model.policy import Policy


class Children:
    """Keeps the border between the processes of a test and those of the wider fixtures that it uses.

    Args:
        devices: what the driver says of the devices now.
        guard: gives the context that a stage of the check of a fixture runs in, by the stage and the fixture's id.
    """

    def __init__(self, devices: Callable[[], Mapping[str, NvmlReading]], guard: Callable[[Stage, str], Guard]) -> None:
        self._watch = ProcessWatch()
        self.devices = devices
        self._guard = guard
        self._left_before: set[tuple[FixturePlace, str]] = set()
        self._places: dict[int, tuple[FixturePlace, Policy]] = {}
        self.records: list[FixtureRecord] = []
        """The fixtures that left processes running."""

    def begin(self) -> None:
        """A test begins; not one that is run again."""
        self._watch.begin()

    def enter_setup(self, fixture: Any, place: FixturePlace, policy: Policy) -> None:
        """A wider fixture's setup begins."""
        self._watch.enter_setup()
        self._places[id(fixture)] = (place, policy)

    def leave_setup(self, fixture: Any) -> None:
        """It has ended: what it has started is the fixture's."""
        self._watch.adopt(id(fixture))

    def finalised(self, fixture: Any, worker: str) -> None:
        """It has been torn down: what it has started must be gone.

        Args:
            fixture: pytest's FixtureDef.
            worker: the xdist worker's id, or ``main``.
        """
        place, policy = self._places.pop(id(fixture), (None, None))
        left = self._watch.released(id(fixture))
        if place is None or policy is None or not left:
            return
        from pytest_gpuleak.engine.stages import FIXTURES

        with self._guard(FIXTURES, f"{place.baseid}::{place.name}"):
            self._record(place, policy, left, worker)

    def _record(self, place: FixturePlace, policy: Policy, left: list[LeftProcess], worker: str) -> None:
        """Judge what a fixture's setup has left running.

        Nothing is run again to confirm it. A process whose handle a module or class keeps is one that a library starts
        once and uses again; any other was not ended by the fixture, and nothing else will do it. One more of a program
        that an earlier set-up of the fixture has left is growth.
        """
        from pytest_gpuleak.engine.judge.arrays import conclude
        from pytest_gpuleak.engine.judge.processes import KEPT_BY, judge_processes
        from pytest_gpuleak.engine.stages import EXPLAIN
        from pytest_gpuleak.explain.process_handles import holders_of
        from pytest_gpuleak.model.findings import FixtureRecord

        holders: Mapping[int, Holder | None] = {}
        with self._guard(EXPLAIN, f"{place.baseid}::{place.name}"):
            # pytest forgets the fixture's value a moment later.
            holders = holders_of({process.pid for process in left}, but=("fixture",))
        findings: list[Finding] = []
        for process in left:
            holder, key = holders.get(process.pid), (place, process.program)
            kept = holder is not None and holder.kind in KEPT_BY and key not in self._left_before
            self._left_before.add(key)
            fails_from = policy.process_bytes if kept else 0
            findings += judge_processes([process], self.devices(), holders, fails_from=fails_from)
        _, concluded = conclude(findings, policy)
        self.records.append(
            FixtureRecord(
                place.name, place.scope, place.baseid, concluded, place.file, place.line, worker, allowed=policy.allowed
            )
        )

    def suspects(self) -> bool:
        """Whether a process runs that the test has started. Costs microseconds where none does."""
        return self._watch.suspects()

    def left(self) -> list[LeftProcess]:
        """The processes that the test has left running, once those that are going have gone."""
        collect(2)  # an executor in a cycle ends its workers when it is collected
        return self._watch.left()

    def expect_run(self) -> None:
        """The test is about to be run again: what runs now is not the re-run's."""
        self._watch.begin()


def merge_records(records: list[FixtureRecord]) -> list[FixtureRecord]:
    """One record a fixture: what several judges have found of it, put together."""
    merged: dict[tuple[str, str, str], FixtureRecord] = {}
    for record in records:
        key = (record.name, record.scope, record.baseid)
        known = merged.get(key)
        merged[key] = record if known is None else dataclasses.replace(known, findings=known.findings + record.findings)
    return list(merged.values())
