"""Read who holds the memory when it has run out, without allocating on a device."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pytest_gpuleak.adapters.bulk import keep_largest, read_live_arrays
from pytest_gpuleak.adapters.dependencies import dependency_in_place, import_dependency
from pytest_gpuleak.engine.left_behind import active_fixtures
from pytest_gpuleak.model.readings import HOST, DeviceSpace
from pytest_gpuleak.session.features.out_of_memory.text import (
    DeviceFacts,
    HostFacts,
    OutOfMemory,
    Shortage,
    group_readings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.model.readings import ArrayReading

_Found = TypeVar("_Found")


def read_facts(tracker: RunTracker, knowledge: SessionKnowledge, shortage: Shortage) -> OutOfMemory:
    """Return who holds the memory, as plain data."""
    readings: dict[int, ArrayReading] = {}
    own: set[int] = set()
    _tried(lambda: _read_arrays(tracker, readings, own), None)
    setups = tracker.ownership.active
    held = {handle.storage for setup in setups for handle in setup.handles if handle.alive()}
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
        host=_tried(lambda: _host_facts(counters), None) if on_host else None,
        earlier=tuple(earlier),
        fixtures=tuple(active_fixtures(setups, readings)),
        own=group_readings(mine),
        others=group_readings(others),
        nvml={} if on_host else _tried(tracker.driver.read, {}),
    )


def _read_arrays(tracker: RunTracker, readings: dict[int, ArrayReading], own: set[int]) -> None:
    """Read live arrays, as far as memory allows, into `readings` by storage, and the test's storages into `own`."""
    born = {id(array) for array in tracker.left_arrays()}
    for identity, reading in read_live_arrays(tracker.frameworks.arrays):
        keep_largest(readings, reading)
        if identity in born:
            own.add(reading.storage)


def _tried(read: Callable[[], _Found], otherwise: _Found) -> _Found:
    """Return a part of the facts; with little memory left, one part may fail and the others not."""
    try:
        return read()
    except Exception:  # noqa: BLE001 - the error at hand is the test's, and ours must not stand in its way
        return otherwise


def _device_facts(counters: Mapping[tuple[str, str], int], frameworks: Frameworks) -> Iterator[DeviceFacts]:
    for device in sorted({device for device, _ in counters if device != HOST}):
        # Devices that have been read are in use: to ask for their free memory makes no context.
        space = _tried(partial(frameworks.device_space, device), None) or DeviceSpace(None, None, None)
        allocated, reserved = counters.get((device, "allocated")), counters.get((device, "reserved"))
        yield DeviceFacts(device, space.total, space.free, allocated, reserved, space.largest_free)


def _host_facts(counters: Mapping[tuple[str, str], int]) -> HostFacts:
    psutil = import_dependency("psutil", required=True)
    with dependency_in_place("psutil"):
        memory, resident = psutil.virtual_memory(), psutil.Process().memory_info().rss
    return HostFacts(memory.total, memory.available, resident, counters.get((HOST, "heap")))
