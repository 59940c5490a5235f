"""Judge processes that were left running. Pure: readings are passed in."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.model.findings import Contribution, Finding, Holder
from pytest_gpuleak.model.fingerprint import fingerprint
from pytest_gpuleak.model.text import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuleak.adapters.nvml.readings import NvmlReading
    from pytest_gpuleak.adapters.processes.facts import LeftProcess
    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.model.source_files import Origin

MAX_SHOWN = 20
"""Processes listed with a finding; its count covers all."""

UNSEARCHED = Holder("unknown", "", "")
"""Stands for a process's holder where no search was made."""

KEPT_BY = ("module", "class", "cache")
"""Kinds of holders that keep a process on purpose: a library starts its helper once and reuses it."""

HINT = (
    "terminate and wait for it in teardown (`process.terminate(); process.wait()`), or start it in a fixture that does"
)
MULTIPROCESSING_HINT = HINT.replace("process.wait()", "process.join()")
MANAGER_HINT = "shut the manager down in teardown (`manager.shutdown()`), or use it in a `with`"
POOL_HINTS = {
    "ProcessPoolExecutor": "shut the pool down in teardown (`executor.shutdown()`), or use it in a `with`",
    "multiprocessing.Pool": "end the pool in teardown (`pool.terminate(); pool.join()`), or use it in a `with`",
    "DataLoader": "let go of the DataLoader's iterator, and of the DataLoader where it has `persistent_workers=True`",
}


class LeftAgain(NamedTuple):
    """The similar process that the re-run left, by the first one's pid, and the lines that started them, by their own."""

    processes: Mapping[int, LeftProcess]
    origins: Mapping[int, Origin]


def judge_processes(
    left: Sequence[LeftProcess],
    readings: Mapping[str, NvmlReading] | None = None,
    holders: Mapping[int, Holder | None] | None = None,
    *,
    fails_from: int | None = 0,
    again: LeftAgain | None = None,
) -> tuple[Finding, ...]:
    """Return one finding per process that a test or a fixture has left running, in the order given. Pure.

    Args:
        left: the processes.
        readings: the driver's counters by device.
        holders: who holds the process's object, by pid; None: nothing does.
        fails_from: bytes of a process and its descendants from which it fails; None: none does.
        again: what the re-run left.
    """
    findings = []
    for process in left:
        found = _finding(process, readings or {}, holders or {})
        if again is not None:
            another = again.processes.get(process.pid, process)
            found = _with_growth(found, another, again.origins.get(another.pid))
        # Memory that cannot be read is no reason to pass.
        unknown = process.own_bytes is None and not found.bytes
        failed = fails_from is not None and (unknown or found.bytes >= fails_from)
        findings.append(dataclasses.replace(found, failed=failed))
    return tuple(findings)


def judge_unconfirmed(
    left: Sequence[LeftProcess],
    policy: Policy,
    readings: Mapping[str, NvmlReading],
    holders: Mapping[int, Holder | None],
    why: str,
) -> tuple[Finding, ...]:
    """Return the findings of processes whose growth no re-run has confirmed (`why`), judged by their memory. Pure.

    With ``confirm=0`` any process fails. A pool's worker that a fixture holds is a note: pools start them when needed.
    """
    findings: list[Finding] = []
    for process in left:
        holder = holders.get(process.pid)
        of_fixture = bool(process.pool) and holder is not None and holder.kind == "fixture"
        fails_from = None if of_fixture else 0 if policy.confirm == 0 else policy.retained_bytes
        (found,) = judge_processes([process], readings, holders, fails_from=fails_from)
        findings.append(dataclasses.replace(found, why_unconfirmed=why or None))
    return tuple(findings)


def _with_growth(found: Finding, another: LeftProcess, origin: Origin | None) -> Finding:
    first, *others = found.contributions
    return dataclasses.replace(
        found,
        # 1 byte where its memory cannot be read, since 0 means that it does not grow.
        bytes_per_run=sum(member.own_bytes or 0 for member in _family(another)) or 1,
        contributions=(dataclasses.replace(first, created=origin), *others),
        evidence=(*found.evidence, f"the re-run left another one, pid {another.pid}"),
    )


def _finding(
    process: LeftProcess, readings: Mapping[str, NvmlReading], holders: Mapping[int, Holder | None]
) -> Finding:
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
    evidence = [f"age: about {process.age_s:.0f} s; started by pid {process.parent}"]
    if holders.get(process.pid, UNSEARCHED) is None:
        evidence.append("nothing here refers to an object for it any more: only by its pid can it be ended")
    if process.name:
        evidence.append(f"multiprocessing's name: {process.name}")
    if process.pool:
        evidence.append(f"a worker of a {process.pool}")
    if len(family) > 1:
        evidence.append(f"with {len(family) - 1} that it has started")
    evidence += [f"on {name}: {format_bytes(size)}" for name, size in totals.items()]
    return Finding(
        kind="process",
        failed=True,
        device=device,
        count=len(family),
        bytes=totals[device] if totals else sum(member.own_bytes or 0 for member in family),
        bytes_per_run=0,
        # The program takes the place of a holder's root, since it identifies the culprit.
        fingerprint=fingerprint("process", Holder("unknown", process.program, process.program)),
        holder=holders.get(process.pid),
        metric=f"pid {process.pid}",
        contributions=tuple(contributions[:MAX_SHOWN]),
        evidence=tuple(evidence),
        hint=_hint(process),
    )


def _hint(process: LeftProcess) -> str:
    if process.pool in POOL_HINTS or not process.name:
        return POOL_HINTS.get(process.pool, HINT)
    # Lib/multiprocessing/managers.py, BaseManager.start: its class, and a number.
    return MANAGER_HINT if process.name.rpartition("-")[0].endswith("Manager") else MULTIPROCESSING_HINT


def _family(process: LeftProcess) -> Iterable[LeftProcess]:
    yield process
    for below in process.descendants:
        yield from _family(below)
