"""Processes that a test or a fixture has started and left running: whose they are, and what is said of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.collector import collect
from pytest_gpuleak.processes import ProcessWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuleak.findings import Finding, FixtureRecord
    from pytest_gpuleak.fixture_places import FixturePlace
    from pytest_gpuleak.policy import Policy
    from pytest_gpuleak.probes.nvml import NvmlReading


class Children:
    """Keeps the border between the processes of a test and those of the wider fixtures that it uses.

    Args:
        devices: what the driver says of the devices now.
    """

    def __init__(self, devices: Callable[[], Mapping[str, NvmlReading]]) -> None:
        self._watch = ProcessWatch()
        self._devices = devices
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
        from pytest_gpuleak.findings import FixtureRecord
        from pytest_gpuleak.process_findings import judge_processes
        from pytest_gpuleak.verdict import conclude

        _, findings = conclude(judge_processes(left, self._devices(), wider_fixtures=False), policy)
        self.records.append(
            FixtureRecord(
                place.name, place.scope, place.baseid, findings, place.file, place.line, worker, allowed=policy.allowed
            )
        )

    def judge(self) -> tuple[Finding, ...]:
        """The findings on what the test has left running. Costs microseconds where it left nothing."""
        if not self._watch.suspects():
            return ()
        collect(2)  # an executor in a cycle ends its workers when it is collected
        left = self._watch.left()
        if not left:
            return ()
        from pytest_gpuleak.process_findings import judge_processes

        return judge_processes(left, self._devices(), wider_fixtures=bool(self._places))


def merge_records(records: list[FixtureRecord]) -> list[FixtureRecord]:
    """One record a fixture: what several judges have found of it, put together."""
    merged: dict[tuple[str, str, str], FixtureRecord] = {}
    for record in records:
        key = (record.name, record.scope, record.baseid)
        known = merged.get(key)
        merged[key] = record if known is None else dataclasses.replace(known, findings=known.findings + record.findings)
    return list(merged.values())
