"""Describe what is still occupied on a device, by its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.engine.limits import LEAST_OCCUPIED
from pytest_gpuleak.model.device_wait import Occupied

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.nvml.readings import NvmlReading
    from pytest_gpuleak.engine.settle.device_wait import Remains
    from pytest_gpuleak.session.features.device_gate.processes import ListedProcesses


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
