"""What is said of processes that were left running. Pure: readings are fed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.findings import Contribution, Finding, Holder
from pytest_gpuleak.reports.text import format_bytes
from pytest_gpuleak.verdict import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuleak.probes.nvml import NvmlReading
    from pytest_gpuleak.process_facts import LeftProcess

MAX_SHOWN = 20
"""Processes listed with a finding; its count covers all."""

HINT = (
    "terminate and wait for it in teardown (`process.terminate(); process.wait()`), or start it in a fixture that does"
)
POOL_HINTS = {
    "ProcessPoolExecutor": "shut the pool down in teardown (`executor.shutdown()`), or use it in a `with`",
    "multiprocessing.Pool": "end the pool in teardown (`pool.terminate(); pool.join()`), or use it in a `with`",
    "DataLoader": "let go of the DataLoader's iterator, and of the DataLoader where it has `persistent_workers=True`",
}


def judge_processes(
    left: Sequence[LeftProcess], readings: Mapping[str, NvmlReading] | None = None, *, wider_fixtures: bool = True
) -> tuple[Finding, ...]:
    """The findings of the processes that a test, or a fixture, has left running: one each, in the order given. Pure.

    It runs or it does not: no re-run confirms it. It fails, except that a pool's worker is a note while a wider fixture
    could own the pool: pools start their workers when a test first uses them.

    Args:
        left: the processes.
        readings: the driver's counters by device, where they are known.
        wider_fixtures: whether fixtures wider than the test are set up.
    """
    return tuple(_finding(process, readings or {}, wider_fixtures) for process in left)


def _finding(process: LeftProcess, readings: Mapping[str, NvmlReading], wider_fixtures: bool) -> Finding:
    family = list(_family(process))
    on_devices = {
        device: {
            row.pid: row.bytes
            for row in reading.children
            if row.bytes and any(row.pid == member.pid for member in family)
        }
        for device, reading in readings.items()
    }
    totals = {device: sum(held.values()) for device, held in on_devices.items() if held}
    device = max(totals, key=lambda name: totals[name]) if totals else "cpu"
    contributions = [
        Contribution(
            text=member.command,
            bytes=(on_devices[device].get(member.pid, 0) if totals else member.own_bytes or 0),
        )
        for member in family
    ]
    contributions.sort(key=lambda part: -part.bytes)
    evidence = [
        f"command: {process.command}",
        f"age: about {process.age_s:.0f} s; started by pid {process.parent}",
    ]
    if process.name:
        evidence.append(f"multiprocessing's name: {process.name}")
    if process.pool:
        evidence.append(f"a worker of a {process.pool}")
    if len(family) > 1:
        evidence.append(f"with {len(family) - 1} that it has started")
    evidence += [f"on {name}: {format_bytes(size)}" for name, size in totals.items()]
    return Finding(
        kind="process",
        failed=not (process.pool and wider_fixtures),
        device=device,
        count=len(family),
        bytes=totals[device] if totals else sum(member.own_bytes or 0 for member in family),
        bytes_per_run=0,
        # The program stands where a holder's root would: it says who the culprit is.
        fingerprint=fingerprint("process", Holder("unknown", process.program, process.program)),
        metric=f"pid {process.pid}",
        contributions=tuple(contributions[:MAX_SHOWN]),
        evidence=tuple(evidence),
        hint=POOL_HINTS.get(process.pool, HINT),
    )


def _family(process: LeftProcess) -> Iterable[LeftProcess]:
    yield process
    for below in process.descendants:
        yield from _family(below)
