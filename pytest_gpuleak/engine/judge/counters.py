"""Judge counters: pure functions from what each run added to findings. Nothing here reads memory."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpuleak.model.findings import Contribution, Finding, Judged
from pytest_gpuleak.model.fingerprint import fingerprint
from pytest_gpuleak.model.readings import HOST, OUTSIDE, OUTSIDE_FLOOR, Growth
from pytest_gpuleak.model.text import format_bytes, format_signed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuleak.adapters.probe_protocol import HostGrowth
    from pytest_gpuleak.model.evidence import Evidence, Survivor
    from pytest_gpuleak.model.policy import Policy

BLOCK = 512
"""Bytes that CUDA's caching allocator rounds a block up to (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize). Without
a count of requested bytes, an array may take this much more."""

LARGE = 1 << 20
"""Bytes from which an array is of the large pool, and the remainder of a block up to which the block is not split
(`should_split`, kSmallSize): without a count of requested bytes, such an array may take this much more."""

ARRAY_OBJECTS = 1024
"""Host bytes assumed beside an array's data: its objects (390 bytes for torch 2.13's CPU tensor), its entry or node."""

CONTRIBUTIONS_SHOWN = 10


@dataclasses.dataclass(frozen=True)
class CounterRun:
    """Growth of the counters in one run, after settling.

    `host` is a recorded re-run's growth by the probe's name, `blocks` what it left of the allocator's, by device, and
    `no_history` why that is not known. On the devices `not_read`, arrays that native code alone knows may be part of the growth.
    """

    growth: Growth
    host: Mapping[str, HostGrowth] = dataclasses.field(default_factory=dict)
    blocks: Mapping[str, tuple[Contribution, ...]] = dataclasses.field(default_factory=dict)
    no_history: Mapping[str, str] = dataclasses.field(default_factory=dict)
    not_read: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class HostLimits:
    """Whether a host counter's growth fails a test, and the bytes below which it is noise."""

    judges: bool
    floor: int


def _host_limit(policy: Policy, limits: HostLimits) -> int:
    return max(policy.host_bytes, limits.floor)


def suspects(growth: Growth, known: Mapping[str, int], policy: Policy, probes: Mapping[str, HostLimits]) -> set[str]:
    """Return the devices (or `HOST`) that grew by more than noise and the bytes that arrays explain (`known`)."""
    found = {
        device
        for device in growth.devices
        if growth.of(device) > known.get(device, 0) + _rounding(growth, device, (1,))
    }
    excused = growth.excused(policy.confirm) + growth.compiled
    for name, limits in probes.items():
        unexplained = growth.bytes.get((HOST, name), 0) - known.get(HOST, 0) - excused
        if unexplained > _host_limit(policy, limits):
            found.add(HOST)
    found |= _reserved_over(growth, policy)
    outside = {device for (device, metric), size in growth.bytes.items() if metric == OUTSIDE and size >= OUTSIDE_FLOOR}
    return found | outside


def judge_counters(
    runs: Sequence[CounterRun],
    evidence: Evidence,
    policy: Policy,
    probes: Mapping[str, HostLimits],
    known_host: int = 0,
) -> tuple[Finding, ...]:
    """Return the findings on memory that no array explains; `known_host` bytes of each run's growth of the host are.

    On a device, growth on every re-run beyond the arrays is ``unattributed`` and fails over `growing_bytes`; what only
    the first run left fails from `retained_bytes` up, unless that run was the first to use the device. On the host,
    every run must exceed the limit: imports, caches and the allocator's slack make single growths of megabytes normal.
    What could not be counted or read to its end may be all of the growth, which is then told and fails nothing.
    """
    findings: list[Finding] = []
    began = max(len(evidence.alive) - len(runs), 0)  # the first run is left out where the next one counts in its place
    of_arrays = [explained(*moved(evidence, run)) for run in range(began, began + len(runs))]
    for device in sorted({device for run in runs for device in run.growth.devices}):
        found = _judge_device(device, runs, evidence, of_arrays, policy)
        if found is not None:
            findings.append(found)
        outside = _judge_outside(device, runs, policy)
        if outside is not None:
            findings.append(outside)
        if device in _reserved_over(runs[0].growth, policy):
            findings.append(_reserved(device, runs[0].growth))
    for known in of_arrays:
        known[HOST] += known_host
    host = _judge_host(runs, evidence, of_arrays, policy, probes)
    return (*findings, host) if host is not None else tuple(findings)


def explained(added: Sequence[Survivor], gone: Sequence[Survivor]) -> Counter[str]:
    """Return by device the bytes of the arrays that a run added, less those of earlier runs that have gone in it.

    Of the host, the data of CPU arrays, and the objects of all arrays.
    """
    known: Counter[str] = Counter()
    for arrays, sign in ((added, 1), (gone, -1)):
        for one in arrays:
            for device, size in one.reading.places() if one.size else ():
                known[device] += sign * size
    known[HOST] = known["cpu"] + ARRAY_OBJECTS * (len(added) - len(gone))
    return known


def moved(evidence: Evidence, run: int) -> tuple[list[Survivor], list[Survivor]]:
    """Return the storages that a run has left, and those of earlier runs that have gone in it."""
    survivors, alive = evidence.survivors, evidence.alive
    if not 0 <= run < len(alive):
        return [], []
    before = alive[run - 1] if run else frozenset()
    return [survivors[i] for i in alive[run] - before], [survivors[i] for i in before - alive[run]]


def _rounding(growth: Growth, device: str, sizes: Iterable[int]) -> int:
    """Return by how much the blocks of arrays of these sizes may exceed them in what the allocator counts."""
    if (device, "requested") in growth.bytes:
        return 0
    return sum(LARGE if size > LARGE else BLOCK - 1 for size in sizes)


def _graph_bytes(evidence: Evidence, device: str) -> int:
    return sum(graph.saved_bytes for (where, _, _), graph in evidence.graphs.items() if where == device)


def _excuses(runs: Sequence[CounterRun], evidence: Evidence, device: str) -> list[str]:
    """Return why part of a device's growth may be memory of arrays that was not counted, a line of evidence each."""
    why: list[str] = []
    if any(graph.cut for graph in evidence.graphs.values()):
        # A graph may have saved arrays on any device, whichever the array behind which it was found is on.
        why.append(
            "it fails nothing: the autograd graph behind the arrays could not be counted to its end, and may hold this memory"
        )
    if any(device in run.not_read for run in runs):
        why.append(
            "it fails nothing: gradients that were never read in Python could not be listed, and may be this memory"
        )
    return why


def _excused_by(why: Sequence[str], no_history: str = "") -> Judged | None:
    """Return what was cut and so excuses a finding, and why no line is known; the check adds how its runs went."""
    return Judged(0, "", cut="; ".join(why), why_no_line=no_history) if why or no_history else None


def _judge_device(
    device: str, runs: Sequence[CounterRun], evidence: Evidence, of_arrays: Sequence[Mapping[str, int]], policy: Policy
) -> Finding | None:
    graph = _graph_bytes(evidence, device)
    sizes = (survivor.size for survivor in evidence.survivors if survivor.reading.device == device)
    slack = _rounding(runs[0].growth, device, sizes)
    rest = [run.growth.of(device) - known.get(device, 0) - graph for run, known in zip(runs, of_arrays, strict=True)]
    first, again = rest[0], rest[1:]
    if first <= slack:
        return None
    grows = bool(again) and min(again) > slack
    per_run = round(sum(again) / len(again)) if grows else 0
    if grows or (not again and policy.confirm == 0):
        failed = policy.growing_bytes is not None and first > policy.growing_bytes
    else:
        # What is measured from a re-run on, which has set up wider fixtures again, went with these after the first run.
        has_stayed = len(evidence.alive) <= len(runs)
        failed = first >= policy.retained_bytes and device not in runs[0].growth.first_used and has_stayed
    if not (failed or grows) and first < policy.retained_bytes:
        return None
    excuses = _excuses(runs, evidence, device)
    blocks = runs[-1].blocks.get(device, ())
    holder = next((part.holder for part in blocks if part.holder is not None), None)
    pending = [one for one in evidence.survivors if one.reading.pending and one.reading.device == device]
    lines = [_counted(device, runs)]
    if holder is None and pending:
        # Of native references to inputs nothing is known but that these arrays have them.
        holder = next((survivor.holder for survivor in pending if survivor.holder is not None), None)
        lines.append(f"arrays that were not evaluated keep the inputs of their computation: {len(pending)} are alive")
    if of_arrays[0].get(device):
        lines.append(f"of these, tensors that Python sees hold {format_bytes(of_arrays[0][device])}")
    if device in runs[0].growth.first_used:
        lines.append(f"the test was the first to use {device}: its context, libraries and kernels are part of this")
    return Finding(
        kind="unattributed",
        failed=failed and not excuses,
        device=device,
        count=0,
        bytes=first,
        bytes_per_run=per_run,
        fingerprint=fingerprint("unattributed", holder) if holder else fingerprint(_named(device, blocks), None),
        holder=holder,
        metric="allocated",
        contributions=blocks[:CONTRIBUTIONS_SHOWN],
        evidence=(*lines, *excuses),
        judged=_excused_by(excuses, runs[-1].no_history.get(device, "")),
    )


def _judge_outside(device: str, runs: Sequence[CounterRun], policy: Policy) -> Finding | None:
    """Judge what every run added outside torch: a single growth may be a context, or kernels (pytorch issue 107667)."""
    sizes = [run.growth.bytes.get((device, OUTSIDE), 0) for run in runs]
    if min(sizes) < OUTSIDE_FLOOR or (len(sizes) == 1 and policy.confirm > 0):
        return None
    return Finding(
        kind="unattributed",
        failed=policy.growing_bytes is not None and sizes[0] > policy.growing_bytes,
        device=device,
        count=0,
        bytes=sizes[0],
        bytes_per_run=round(sum(sizes[1:]) / len(sizes[1:])) if len(sizes) > 1 else 0,
        fingerprint=fingerprint(f"outside {device.partition(':')[0]}", None),
        metric="outside torch",
        evidence=(
            f"by the driver, this process beyond what torch reserves, run by run: {', '.join(map(format_signed, sizes))}",
        ),
        hint="It is no torch tensor: look for memory that an extension, NCCL or another framework allocates and keeps.",
    )


def _named(device: str, blocks: Sequence[Contribution]) -> str:
    created = next((part.created for part in blocks if part.created is not None), None)
    line = "" if created is None else f"{created.function} {created.code}"
    return f"unattributed {device.partition(':')[0]} {line}".strip()


def _counted(device: str, runs: Sequence[CounterRun]) -> str:
    grown = ", ".join(format_signed(run.growth.of(device)) for run in runs)
    return f"allocated on {device}, run by run: {grown}"


def _reserved_over(growth: Growth, policy: Policy) -> set[str]:
    limit = policy.reserved_bytes
    return {
        device
        for (device, metric), size in growth.bytes.items()
        if metric == "reserved" and limit is not None and size > 0 and size >= limit
    }


def _reserved(device: str, growth: Growth) -> Finding:
    size = growth.bytes[device, "reserved"]
    allocated = growth.bytes.get((device, "allocated"), 0)
    return Finding(
        kind="unattributed",
        failed=True,
        device=device,
        count=0,
        bytes=size,
        bytes_per_run=0,
        fingerprint=fingerprint(f"reserved {device.partition(':')[0]}", None),
        metric="reserved",
        evidence=(
            f"reserved on {device}: {format_signed(size)}, allocated: {format_signed(allocated)}",
            f"cached, or lost to fragmentation: {format_bytes(max(size - allocated, 0))}",
        ),
    )


def _judge_host(
    runs: Sequence[CounterRun],
    evidence: Evidence,
    of_arrays: Sequence[Mapping[str, int]],
    policy: Policy,
    probes: Mapping[str, HostLimits],
) -> Finding | None:
    """Return one finding for the host: by the first counter that grew, with the others beside it."""
    grown: dict[str, list[int]] = {}
    for name, limits in probes.items():
        sizes = [
            (run.host[name].bytes if name in run.host else run.growth.bytes.get((HOST, name), 0))
            - known[HOST]
            - run.growth.compiled
            - _graph_bytes(evidence, "cpu")
            for run, known in zip(runs, of_arrays, strict=True)
        ]
        strict = len(runs) > 1 or policy.confirm == 0
        if strict and min(sizes) > _host_limit(policy, limits):
            grown[name] = sizes
    if not grown:
        return None
    judged = [name for name in grown if probes[name].judges]
    metric = (judged or list(grown))[0]
    recorded = runs[-1].host
    parts: tuple[Contribution, ...] = ()
    for name in (metric, *(name for name in recorded if name != metric)):
        if name in recorded and recorded[name].contributions:
            parts = recorded[name].contributions
            break
    holder = next((part.holder for part in parts if part.holder is not None), None)
    sizes = grown[metric]
    excuses = _excuses(runs, evidence, "cpu")
    return Finding(
        kind="host",
        failed=bool(judged) and not excuses,
        device="cpu",
        count=0,
        # Of a first run that began with earlier tests' garbage, or freed what they had put into a fixture, it is a bound.
        bytes=min(sizes[0], max(sizes[1:], default=sizes[0])),
        bytes_per_run=min(sizes[1:], default=0),
        fingerprint=fingerprint("host", holder) if holder else fingerprint(_named("host", parts), None),
        holder=holder,
        metric=metric,
        contributions=parts[:CONTRIBUTIONS_SHOWN],
        evidence=(
            *(f"{name}, run by run: {', '.join(map(format_signed, sizes))}" for name, sizes in sorted(grown.items())),
            *excuses,
        ),
        judged=_excused_by(excuses),
    )
