"""What a test has left in this process, by device, and the description of all that is still occupied. Sizes are bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuleak.engine.limits import LEAST_OCCUPIED
from pytest_gpuleak.model.devices import Occupied
from pytest_gpuleak.model.outcomes import CHECKED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuleak.adapters.nvml.readings import NvmlReading
    from pytest_gpuleak.engine.detect.counters import CounterWatch
    from pytest_gpuleak.engine.settle.device_wait import Remains
    from pytest_gpuleak.model.outcomes import TestRecord
    from pytest_gpuleak.session.features.device_gate.processes import ListedProcesses

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
