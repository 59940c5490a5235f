"""Verdicts: pure functions from evidence and policy to findings. Nothing here reads memory or touches an array."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_gpuleak.findings import MAX_ARRAYS_SHOWN, ArrayInfo, Finding, FindingKind, Holder, Origin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuleak.arrays.protocol import ArrayReading
    from pytest_gpuleak.findings import Autograd
    from pytest_gpuleak.policy import Policy
    from pytest_gpuleak.records import Verdict

FINGERPRINT_DIGITS = 16

MAX_CYCLE_SHOWN = 10
"""Arrays listed with a cycle."""

Root = tuple[str, str, str]
"""What findings are grouped by: device, holder kind and holder root."""


def root_of(device: str, holder: Holder | None) -> Root:
    """The group that an array on a device belongs to."""
    return (device, holder.kind, holder.root) if holder is not None else (device, "", "")


@dataclasses.dataclass(frozen=True)
class Survivor:
    """One storage that a run left behind, shown by one of the arrays that share it.

    Attributes:
        run: the run that it was born in: 0 for the first, 1 for the first re-run, ...
        reading: metadata of the array.
        owned: whether no older array shares the storage; else the run left an array behind, but no memory.
        holder: who keeps it, None where it was gone before anybody looked.
        others: who would still keep it if the holder let go.
        pattern: the holder's text without indices.
        created: the line that made the storage, where known.
    """

    run: int
    reading: ArrayReading
    owned: bool = True
    holder: Holder | None = None
    others: tuple[Holder, ...] = ()
    pattern: str = ""
    created: Origin | None = None

    @property
    def size(self) -> int:
        """Bytes that the run left behind with it."""
        return self.reading.storage_bytes if self.owned else 0

    @property
    def root(self) -> Root:
        """What findings are grouped by."""
        return root_of(self.reading.device, self.holder)


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What is known of a suspect, run by run.

    Attributes:
        survivors: every storage that was left behind by some run.
        alive: for each run that ended, the indices into `survivors` of those alive after it. One entry means that
            it was not run again.
        cycles: arrays of the first run that only a garbage collection freed.
        graphs: what the autograd graphs behind the survivors retain, by device, holder kind and holder root.
    """

    survivors: tuple[Survivor, ...]
    alive: tuple[frozenset[int], ...]
    cycles: tuple[ArrayReading, ...] = ()
    graphs: Mapping[Root, Autograd] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Group:
    """Survivors of one kind under one root, on their way to a finding."""

    kind: FindingKind
    members: tuple[Survivor, ...]
    bytes_per_run: int = 0


def judge(evidence: Evidence, policy: Policy) -> tuple[Finding, ...]:
    """The findings of one test or fixture, worst first.

    Growth is judged by the pair of `growing_tensors` and `growing_bytes`; what does not grow, and what could not be
    confirmed, by `retained_bytes` a device. With ``confirm=0`` the user has chosen the strict rule: what is over the
    growth limits after the one run fails.
    """
    if len(evidence.alive) > 1:
        groups = _compare_runs(evidence)
    else:
        first = [evidence.survivors[index] for index in sorted(evidence.alive[0])]
        groups = [_Group("unconfirmed", tuple(members)) for members in _by_root(first)]
    failing = _failing_devices(groups, policy)
    findings = [
        dataclasses.replace(
            _finding(group, group.kind, group.members[0].reading.device in failing[group.kind]),
            autograd=evidence.graphs.get(group.members[0].root),
        )
        for group in groups
    ]
    if policy.cycles != "ignore":
        for readings in _by_device(evidence.cycles):
            findings.append(_cycle(readings, policy))
    order = ("growing", "retained", "unconfirmed", "cycle")
    return tuple(sorted(findings, key=lambda found: (not found.failed, order.index(found.kind), *_order_of(found))))


def _order_of(found: Finding) -> tuple[bool, int, str]:
    """What names a culprit first, then the largest: the same in each run."""
    holder = found.holder
    nameless = holder is None or holder.kind in ("native", "unknown")
    return nameless, -found.bytes, holder.text if holder is not None else ""


def conclude(findings: Sequence[Finding], policy: Policy) -> tuple[Verdict, tuple[Finding, ...]]:
    """The verdict of a test with these findings, and the findings as they are to be reported.

    What is allowed was found, and is reported, but fails nothing.
    """
    if any(found.failed for found in findings):
        if policy.allowed is None:
            return "leaked", tuple(findings)
        return "allowed", tuple(dataclasses.replace(found, failed=False) for found in findings)
    return ("noted", tuple(findings)) if findings else ("clean", ())


def fingerprint(kind: str, holder: Holder | None) -> str:
    """Hex digest of kinds, names and edges alone.

    Digits, paths and addresses are left out, so that it is the same on another machine and in another order.
    """
    import hashlib  # here, since it takes milliseconds, and most runs find nothing

    parts = [kind]
    if holder is not None:
        parts += [holder.kind, _nameless(holder.root), *(_nameless(step.edge) for step in holder.path)]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:FINGERPRINT_DIGITS]


_CYCLE_FINGERPRINT = fingerprint("cycle", None)


def _nameless(text: str) -> str:
    text = re.sub(r"(['\"])[^'\"]*[/\\][^'\"]*\1", "'path'", text)
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text)


def _compare_runs(evidence: Evidence) -> list[_Group]:
    """Split what the first run left into what grows on every re-run and what does not."""
    survivors = evidence.survivors
    added: list[dict[Root, list[int]]] = []  # by re-run and root: what it left in addition
    heirs: dict[int, int] = {}  # a survivor that died, and the one that took its place
    for run in range(1, len(evidence.alive)):
        before, after = evidence.alive[run - 1], evidence.alive[run]
        new = [index for index in sorted(after) if survivors[index].run == run]
        replaced = _match(sorted(before - after), new, survivors, before & after)
        heirs.update(replaced)
        taken = set(replaced.values())
        by_root = defaultdict(list)
        for index in new:
            if index not in taken:
                by_root[survivors[index].root].append(index)
        added.append(by_root)
    growing_roots = set(added[0]).intersection(*added[1:])

    first = sorted(evidence.alive[0])
    grown: dict[Root, list[Survivor]] = {root: [] for root in growing_roots}
    rest: list[Survivor] = []
    gone: list[Survivor] = []
    for index in first:
        survivor = survivors[index]
        heir = _last_heir(index, heirs)
        if heir != index:
            # It was replaced: its holder and line are those of what took its place.
            survivor = dataclasses.replace(
                survivors[heir], run=0, reading=survivor.reading, owned=survivor.owned or survivors[heir].owned
            )
        if survivor.root in grown and _grows_with(
            survivor, [survivors[i] for i in added[0][survivor.root]], first, evidence
        ):
            grown[survivor.root].append(survivor)
        elif heir == index and index not in evidence.alive[-1]:
            gone.append(survivor)  # it went while the test ran again, and nothing took its place
        else:
            rest.append(survivor)
    groups = []
    runs = len(added)
    for root, members in grown.items():
        per_run = round(sum(survivors[index].size for by_root in added for index in by_root[root]) / runs)
        # Found under this root in the re-runs only: a path of equal length was taken the first time.
        shown = members or [dataclasses.replace(survivors[index], run=0) for index in added[0][root]]
        groups.append(_Group("growing", tuple(_with_lines(shown, [survivors[i] for i in added[0][root]])), per_run))
    groups += [_Group("retained", tuple(members)) for members in _by_root(rest)]
    groups += [_Group("unconfirmed", tuple(members)) for members in _by_root(gone)]
    return groups


def _match(dead: list[int], new: list[int], survivors: Sequence[Survivor], staying: frozenset[int]) -> dict[int, int]:
    """Which new survivor took the place of which dead one: nothing was added where one replaced the other.

    The likest first: same root, same shape and type; in the end any on the same device, since data of another size
    may take a place in a cache too. Of several as like, the one whose root has fewest survivors staying: a list
    that is appended to keeps its old members, a slot that is overwritten does not.
    """
    crowd: dict[Root, int] = defaultdict(int)
    for index in staying:
        crowd[survivors[index].root] += 1
    matched: dict[int, int] = {}
    free = set(new)
    for likeness in (4, 3, 2, 1):
        for index in dead:
            if index in matched:
                continue
            candidates = [other for other in free if _likeness(survivors[index], survivors[other]) >= likeness]
            if candidates:
                heir = min(candidates, key=lambda other: (crowd[survivors[other].root], other))
                matched[index] = heir
                free.remove(heir)
    return matched


def _likeness(old: Survivor, new: Survivor) -> int:
    """0 for another device; more the more the two are alike."""
    if old.reading.device != new.reading.device:
        return 0
    same_form = (old.reading.shape, old.reading.dtype) == (new.reading.shape, new.reading.dtype)
    same_root = old.holder is not None and old.root == new.root
    return 1 + 2 * same_form + same_root


def _last_heir(index: int, heirs: dict[int, int]) -> int:
    while index in heirs:
        index = heirs[index]
    return index


def _grows_with(survivor: Survivor, additions: list[Survivor], first: list[int], evidence: Evidence) -> bool:
    """Whether a first survivor under a growing root is one of those that grow.

    Beside a list that grows, the same root may hold a slot filled once: where every addition came to a place that
    the first run had filled too, only the members at such places grow.
    """
    if survivor.holder is not None and survivor.holder.kind in ("native", "unknown"):
        return True  # no place: which of several ways is shown differs from run to run
    places = {addition.pattern for addition in additions}
    filled = {evidence.survivors[index].pattern for index in first}
    return survivor.pattern in places if places <= filled else True


def _with_lines(members: Sequence[Survivor], additions: Sequence[Survivor]) -> list[Survivor]:
    """The first run's survivors with the creating lines of their like in the re-run, which alone was traced."""
    lines = [addition for addition in additions if addition.created is not None]
    result = []
    for member in members:
        if member.created is None and lines:
            like = max(lines, key=lambda addition: (addition.pattern == member.pattern, _likeness(member, addition)))
            member = dataclasses.replace(member, created=like.created)  # noqa: PLW2901 - the same member, with its line
        result.append(member)
    return result


def _failing_devices(groups: Iterable[_Group], policy: Policy) -> dict[FindingKind, set[str]]:
    """The devices on which a kind of finding fails."""
    growing: dict[str, list[Survivor]] = defaultdict(list)
    kept: dict[str, int] = defaultdict(int)
    strict: dict[str, list[Survivor]] = defaultdict(list)
    for group in groups:
        device = group.members[0].reading.device
        if group.kind == "growing":
            growing[device] += group.members
        elif group.kind == "unconfirmed" and policy.confirm == 0:
            strict[device] += group.members
        else:
            kept[device] += sum(member.size for member in group.members)
    over = {device for device, size in kept.items() if size >= policy.retained_bytes}
    return {
        "growing": _over_growth(growing, policy),
        "retained": over,
        "unconfirmed": _over_growth(strict, policy) if policy.confirm == 0 else over,
    }


def _over_growth(by_device: dict[str, list[Survivor]], policy: Policy) -> set[str]:
    count = sum(len(members) for members in by_device.values())
    if policy.growing_tensors is not None and count > policy.growing_tensors:
        return set(by_device)
    if policy.growing_bytes is None:
        return set()
    return {
        device for device, members in by_device.items() if sum(member.size for member in members) > policy.growing_bytes
    }


def _by_root(members: Iterable[Survivor]) -> list[list[Survivor]]:
    groups: dict[Root, list[Survivor]] = defaultdict(list)
    for member in members:
        groups[member.root].append(member)
    return list(groups.values())


def _by_device(readings: Iterable[ArrayReading]) -> list[list[ArrayReading]]:
    """Readings by device, those that share a storage once."""
    groups: dict[str, dict[int, ArrayReading]] = defaultdict(dict)
    for reading in readings:
        groups[reading.device].setdefault(reading.storage, reading)
    return [list(group.values()) for group in groups.values()]


def _finding(group: _Group, kind: FindingKind, failed: bool) -> Finding:
    # The largest first, and of equal ones the one with the shortest path: the same in each run.
    members = sorted(
        group.members,
        key=lambda member: (
            -member.reading.storage_bytes,
            len(member.holder.text) if member.holder else 0,
            member.holder.text if member.holder else "",
        ),
    )
    holders = [member.holder for member in members if member.holder is not None]
    holder = min(holders, key=_clarity) if holders else None  # of equal ones the first, which is the largest array's
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
        other_holders=next((member.others for member in members if member.others), ()),
    )


def _cycle(readings: list[ArrayReading], policy: Policy) -> Finding:
    """The finding for what only a collection freed; in some suites nearly every test has one, so it is made in haste."""
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
    )


def _clarity(holder: Holder) -> tuple[bool, bool]:
    """What is easier to act on sorts first.

    The way to an object itself, rather than through an autograd graph to what the graph has saved; and where no root is
    known a path, which says more than the bare end of one.
    """
    through_graph = any("grad_fn" in step.edge for step in holder.path)
    return through_graph, holder.kind in ("native", "unknown") and not holder.path


def _info(reading: ArrayReading, created: Origin | None = None) -> ArrayInfo:
    return ArrayInfo(
        shape=reading.shape,
        dtype=reading.dtype,
        device=reading.device,
        bytes=reading.bytes,
        storage_bytes=reading.storage_bytes,
        created=created,
    )
