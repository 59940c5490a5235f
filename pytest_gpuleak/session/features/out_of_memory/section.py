"""Read who holds the memory when it has run out, without allocating on a device, for the failing test's report."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.bulk import keep_largest, read_live_arrays
from pytest_gpuleak.adapters.dependencies import dependency_in_place, import_dependency
from pytest_gpuleak.engine.left_behind import active_fixtures
from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.readings import HOST, DeviceSpace
from pytest_gpuleak.session.features.out_of_memory.text import (
    HOST_SECTION,
    SECTION,
    DeviceFacts,
    HostFacts,
    OutOfMemory,
    Shortage,
    explain_out_of_memory,
    find_shortage,
    group_readings,
)
from pytest_gpuleak.session.pytest_internals import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pytest

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.model.readings import ArrayReading


class OutOfMemorySection:
    """Tell in a failing test's report who holds the memory. `explain_late` searches for holders not known yet."""

    def __init__(self, tracker: RunTracker, knowledge: SessionKnowledge, explain_late: Callable[[], object]) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self._explain_late = explain_late
        self._warned = False

    def add(self, item: pytest.Item, error: BaseException, report: pytest.TestReport) -> None:
        """Add the section where memory ran out."""
        try:
            shortage = find_shortage(error)
            if shortage is not None:
                self._explain_late()
                lines = explain_out_of_memory(_read_facts(self._tracker, self._knowledge, shortage))
                report.sections.append((HOST_SECTION if shortage.device == HOST else SECTION, "\n".join(lines)))
        except Exception as failure:  # noqa: BLE001 - there may be no memory left to say it with
            if not self._warned:
                self._warned = True
                with suppress(Exception):
                    why = type(failure).__name__
                    warn(item.config, f"who holds the memory could not be told: {why}", item.nodeid)


def _read_facts(tracker: RunTracker, knowledge: SessionKnowledge, shortage: Shortage) -> OutOfMemory:
    readings: dict[int, ArrayReading] = {}
    own: set[int] = set()
    with suppress(Exception):  # as far as memory allows
        born = {id(array) for array in tracker.left_arrays()}
        for identity, reading in read_live_arrays(tracker.frameworks.arrays):
            keep_largest(readings, reading)
            if identity in born:
                own.add(reading.storage)
    setups = tracker.ownership.active
    held = {handle.storage for setup in setups for handle, _ in setup.held if handle.alive()}
    left, earlier = knowledge.left_behind.storages(), knowledge.left_behind.alive()
    mine: list[ArrayReading] = []
    others: list[ArrayReading] = []
    for storage, reading in readings.items():
        if storage not in held and (reading.device, storage) not in left:
            (mine if storage in own else others).append(reading)
    counters = tracker.counters.read()
    on_host = shortage.device == HOST
    return OutOfMemory(
        shortage=shortage,
        devices=() if on_host else tuple(_device_facts(counters, tracker.frameworks)),
        host=isolated(lambda: _host_facts(counters), lambda _: None) if on_host else None,
        earlier=tuple(earlier),
        fixtures=tuple(active_fixtures(setups, readings)),
        own=tuple(group_readings(mine)),
        others=tuple(group_readings(others)),
        nvml={} if on_host else isolated(tracker.driver.read, lambda _: {}),
    )


def _device_facts(counters: Mapping[tuple[str, str], int], frameworks: Frameworks) -> Iterator[DeviceFacts]:
    for device in sorted({device for device, _ in counters if device != HOST}):
        # Devices that have been read are in use: to ask for their free memory makes no context.
        space = isolated(partial(frameworks.device_space, device), lambda _: None) or DeviceSpace(None, None, None)
        allocated, reserved = counters.get((device, "allocated")), counters.get((device, "reserved"))
        yield DeviceFacts(device, space.total, space.free, allocated, reserved, space.largest_free)


def _host_facts(counters: Mapping[tuple[str, str], int]) -> HostFacts:
    psutil = import_dependency("psutil", required=True)
    with dependency_in_place("psutil"):
        memory, resident = psutil.virtual_memory(), psutil.Process().memory_info().rss
    return HostFacts(memory.total, memory.available, resident, counters.get((HOST, "heap")))
