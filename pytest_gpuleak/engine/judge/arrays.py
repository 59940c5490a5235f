"""Judge arrays: pure functions from evidence and policy to findings. Nothing here reads memory or touches an array."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_gpuleak.engine.judge.growth import (
    Group,
    compare_runs,
    group_by_root,
    group_only_run,
    growing_reference,
)
from pytest_gpuleak.engine.judge.replacements import compare, match_replacements, without_digits
from pytest_gpuleak.engine.limits import MINOR_SHARE
from pytest_gpuleak.explain.edge_to_edit import edge_to_edit, is_name
from pytest_gpuleak.model.evidence import Evidence, Survivor
from pytest_gpuleak.model.findings import MAX_ARRAYS_SHOWN, ArrayInfo, Finding, FindingKind, Holder
from pytest_gpuleak.model.fingerprint import fingerprint
from pytest_gpuleak.model.readings import DISK, TRACE
from pytest_gpuleak.model.text import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.model.readings import ArrayReading
    from pytest_gpuleak.model.records import Verdict
    from pytest_gpuleak.model.source_files import Origin


MAX_CYCLE_SHOWN = 10
"""Arrays listed with a cycle."""

MAX_BESIDE = 3
"""Holders of further arrays below the same root that are listed."""

MAX_DEVICES_SHOWN = 16
"""Devices of sharded arrays whose bytes are listed."""


def judge(evidence: Evidence, policy: Policy) -> tuple[Finding, ...]:
    """Return the findings of one test or fixture, worst first.

    Growth is judged by `growing_tensors` and `growing_bytes` together; what does not grow, or was not confirmed, by
    `retained_bytes` per device. With ``confirm=0`` what exceeds the growth limits after the only run fails.
    """
    compared = len(evidence.alive) > 1 + evidence.rebuilds
    every = compare_runs(evidence) if compared else group_only_run(evidence, strict=policy.confirm == 0)
    groups = [group for group in every if group.device != TRACE]
    until_teardown = {id(group) for group in groups if _is_judged_later(group, evidence)}
    now = [group for group in groups if id(group) not in until_teardown and not _has_gone_with_fixtures(group)]
    judged = set(map(id, now))
    failing = _failing_devices(now, evidence.let_go, policy)
    minor = _minor(now, policy)
    findings = [
        dataclasses.replace(
            _finding(
                group,
                group.kind,
                group.device in failing[group.kind] and id(group) not in minor and id(group) in judged,
            ),
            autograd=evidence.graphs.get(group.members[0].root),
            until_teardown=id(group) in until_teardown,
        )
        for group in groups
    ]
    findings += judge_cycles(_garbage(evidence), policy, evidence.rings)
    tracers = (member for group in every if group.device == TRACE for member in group.members)
    # By root alone: whether they stay or are replaced by the next run's says nothing, since they have no memory.
    findings += [_finding(group, "tracer", failed=False) for group in group_by_root("retained", tracers)]
    order = ("growing", "retained", "unconfirmed", "cycle", "tracer")
    return tuple(sorted(findings, key=lambda found: (not found.failed, order.index(found.kind), *_order_of(found))))


def judge_added(survivors: Sequence[Survivor], policy: Policy) -> tuple[Finding, ...]:
    """Return the findings on what a re-run has added, where the runs before it are not compared: all of it grows."""
    found = judge(Evidence(tuple(survivors), (frozenset(), frozenset(range(len(survivors))))), policy)
    return tuple(one for one in found if one.kind == "growing")


def judge_cycles(cycles: Iterable[ArrayReading], policy: Policy, rings: Mapping[int, Holder]) -> list[Finding]:
    """Return the findings on arrays that only a garbage collection freed, one a device."""
    if policy.cycles == "ignore":
        return []
    # Of arrays that share their memory one is told.
    known_first = sorted(cycles, key=lambda reading: reading.identity not in rings)
    return [_cycle(readings, policy, rings) for readings in _by_device(known_first)]


def _order_of(found: Finding) -> tuple[bool, int, str]:
    """Sort findings with a named culprit first, then by size: the same order in each run."""
    holder = found.holder
    return holder is None or not holder.named, -found.bytes, holder.text if holder is not None else ""


def conclude(findings: Sequence[Finding], policy: Policy) -> tuple[Verdict, tuple[Finding, ...]]:
    """Return the verdict, and the findings to report: what is allowed is reported, but fails nothing."""
    if any(found.failed for found in findings):
        if policy.allowed is None:
            return "leaked", tuple(findings)
        return "allowed", tuple(dataclasses.replace(found, failed=False) for found in findings)
    return ("noted", tuple(findings)) if findings else ("clean", ())


_CYCLE_FINGERPRINT = fingerprint("cycle", None)


def _is_judged_later(group: Group, evidence: Evidence) -> bool:
    """Tell whether a wider fixture that is still set up alone holds what does not grow: its teardown judges it."""
    return group.kind == "retained" and all(
        one.holder is not None and one.holder.kind == "fixture" and one.holder.root in evidence.up and not one.others
        for one in group.members
    )


def _garbage(evidence: Evidence) -> list[ArrayReading]:
    """Return what only a collection freed, but for what wider fixtures had held: their teardown has made it garbage."""
    garbage = list(evidence.cycles)
    if not (evidence.collected or (garbage and evidence.rebuilds)):
        return garbage
    comparison = compare(evidence)
    garbage += [evidence.survivors[index].reading for index in sorted(comparison.garbage)]
    held = [evidence.survivors[index] for index in comparison.fresh]
    pool = [*(Survivor(0, one) for one in garbage), *held]
    gone = match_replacements(range(len(garbage)), range(len(garbage), len(pool)), pool, ())
    return [one for index, one in enumerate(garbage) if index not in gone]


def _has_gone_with_fixtures(group: Group) -> bool:
    """Tell whether the first run has left none of it: it went in the teardown of the wider fixtures that a re-run has set up again."""
    return group.kind == "retained" and all(one.run > 0 for one in group.members)


def _failing_devices(groups: Iterable[Group], let_go: Mapping[str, int], policy: Policy) -> dict[FindingKind, set[str]]:
    growing: dict[str, list[Survivor]] = defaultdict(list)
    kept: dict[str, int] = defaultdict(int)
    strict: dict[str, list[Survivor]] = defaultdict(list)
    for group in groups:
        device = group.device
        if group.kind == "growing":
            growing[device] += group.added or group.members
        elif group.kind == "unconfirmed" and policy.confirm == 0:
            strict[device] += group.members
        else:
            kept[device] += group.size
    # A mapped file's pages are no memory that a later test lacks.
    over = {
        device
        for device, size in kept.items()
        if size - let_go.get(device, 0) >= policy.retained_bytes and device != DISK
    }
    return {
        "growing": _over_growth(growing, policy),
        "retained": over,
        "unconfirmed": _over_growth(strict, policy) if policy.confirm == 0 else over,
    }


def _minor(groups: Iterable[Group], policy: Policy) -> set[int]:
    """Return the ids of groups too small to be worth an edit, where others on their device fail without them."""
    by_device: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        if group.kind == "retained" or (group.kind == "unconfirmed" and policy.confirm != 0):
            by_device[group.device].append(group)
    minor: set[int] = set()
    for members in by_device.values():
        small = [group for group in members if group.size * MINOR_SHARE <= policy.retained_bytes]
        rest = sum(group.size for group in members) - sum(group.size for group in small)
        if rest >= policy.retained_bytes:
            minor.update(map(id, small))
    return minor


def _over_growth(by_device: dict[str, list[Survivor]], policy: Policy) -> set[str]:
    count = sum(len(members) for members in by_device.values())
    if policy.growing_tensors is not None and count > policy.growing_tensors:
        return set(by_device)
    if policy.growing_bytes is None:
        return set()
    return {device for device, members in by_device.items() if sum(one.size for one in members) > policy.growing_bytes}


def _by_device(readings: Iterable[ArrayReading]) -> list[list[ArrayReading]]:
    groups: dict[str, dict[int, ArrayReading]] = defaultdict(dict)
    for reading in readings:
        if reading.device != TRACE:
            groups[reading.device].setdefault(reading.storage, reading)
    return [list(group.values()) for group in groups.values()]


def _finding(group: Group, kind: FindingKind, failed: bool) -> Finding:
    # The largest first, and of equal arrays the shortest path: the same order in each run.
    members = sorted(
        group.members,
        key=lambda member: (
            -member.reading.storage_bytes,
            len(member.holder.text) if member.holder else 0,
            member.holder.text if member.holder else "",
        ),
    )
    holders = [member.holder for member in members if member.holder is not None]
    holder = min(holders, key=_clarity) if holders else None  # of equal holders the first, which is the largest array's
    if holder is not None and group.added:
        added = (member.holder for member in group.added if member.holder is not None)
        holder = dataclasses.replace(holder, deciding=growing_reference(holder, holders, added))
    return Finding(
        kind=kind,
        failed=failed,
        device=members[0].reading.device,
        count=len(members),
        bytes=sum(member.size for member in members),
        bytes_per_run=group.bytes_per_run,
        fingerprint=fingerprint(kind, holder),
        tensors=tuple(_info(member.reading, member.created) for member in members[:MAX_ARRAYS_SHOWN]),
        holder=holder,
        other_holders=(*next((member.others for member in members if member.others), ()), *_beside(holder, members)),
        evidence=_bytes_by_device(members),
    )


def _beside(shown: Holder | None, members: Iterable[Survivor]) -> list[Holder]:
    """Return holders of further members that stay when the reader edits what is `shown`, one for each name.

    An item by its number is no name: who empties the container lets go of all.
    """
    edit = None if shown is None else edge_to_edit(shown) if shown.deciding is None else shown.deciding
    if shown is None or edit is None:
        return []
    found: dict[str, Holder] = {}
    alike = {member.pattern: member.holder for member in members if member.holder is not None}
    for holder in alike.values():
        pairs = zip(shown.path[: edit + 1], holder.path, strict=False)
        parted = next(
            (theirs for ours, theirs in pairs if without_digits(ours.edge) != without_digits(theirs.edge)), None
        )
        if parted is not None and is_name(parted.edge):
            found.setdefault(without_digits(parted.edge), holder)
    return list(found.values())[:MAX_BESIDE]


def _bytes_by_device(members: Iterable[Survivor]) -> tuple[str, ...]:
    sizes: dict[str, int] = defaultdict(int)
    for member in members:
        for device, size in member.reading.shards:
            sizes[device] += size if member.owned else 0
    shown = [f"{device} {format_bytes(size)}" for device, size in list(sizes.items())[:MAX_DEVICES_SHOWN]]
    if len(sizes) > len(shown):
        shown.append(f"and {len(sizes) - len(shown)} more")
    return (f"on {len(sizes)} devices: {', '.join(shown)}",) if shown else ()


def _cycle(readings: list[ArrayReading], policy: Policy, rings: Mapping[int, Holder]) -> Finding:
    """Build the finding for what only a collection freed. Kept cheap: some suites have it for nearly every test."""
    readings.sort(key=lambda reading: -reading.storage_bytes)
    return Finding(
        kind="cycle",
        failed=policy.cycles == "fail",
        device=readings[0].device,
        count=len(readings),
        bytes=sum(reading.storage_bytes for reading in readings),
        bytes_per_run=0,
        fingerprint=_CYCLE_FINGERPRINT,
        tensors=tuple(_info(reading) for reading in readings[:MAX_CYCLE_SHOWN]),
        holder=next((rings[reading.identity] for reading in readings if reading.identity in rings), None),
    )


def _clarity(holder: Holder) -> tuple[bool, bool]:
    """Sort first what is easier to act on.

    A path to the object itself comes before a path through an autograd graph to what the graph has saved. Where no root
    is known, a path says more than its bare end.
    """
    through_graph = any("grad_fn" in step.edge for step in holder.path)
    return through_graph, not (holder.named or holder.path)


def _info(reading: ArrayReading, created: Origin | None = None) -> ArrayInfo:
    return ArrayInfo(
        shape=reading.shape,
        dtype=reading.dtype,
        device=reading.device,
        bytes=reading.bytes,
        storage_bytes=reading.storage_bytes,
        created=created,
        framework=reading.framework,
        file=reading.file,
    )
