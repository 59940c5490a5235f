"""Judge arrays that the collector does not track: pure functions from what a walk has found to findings."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.engine.judge.arrays import judge, judge_added
from pytest_gpuleak.engine.limits import MINOR_SHARE
from pytest_gpuleak.model.evidence import Evidence
from pytest_gpuleak.model.findings import Finding, Holder, Judged
from pytest_gpuleak.model.fingerprint import fingerprint
from pytest_gpuleak.model.text import format_signed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.model.evidence import Survivor
    from pytest_gpuleak.model.policy import Policy

CUT: Final = "whether arrays explain this is unknown: the walk over the heap for them was cut at its bound"
"""Why growth that arrays may explain is a note."""


@dataclasses.dataclass
class UntrackedRuns:
    """What walks over the heap have found of a suspect.

    Attributes:
        survivors: memory that the recorded re-run added, if there is one (`grows`), or the first run may have left.
        gone: sizes of memory that was freed during the recorded re-run, with their number.
        imported: the modules that the first run imported: their own arrays are no residue.
        replaced: bytes of older arrays that the first run has let go: a credit of what it has left.
        sure: keys of memory that the first run certainly left; other memory was chosen by its size.
        libraries: source files of holders that are installed libraries'.
        up: roots of the wider fixtures that are still set up (see `Evidence.up`).
    """

    survivors: tuple[Survivor, ...] = ()
    gone: Counter[int] = dataclasses.field(default_factory=Counter)
    grows: bool = False
    confirmed: bool = True
    imported: tuple[str, ...] = ()
    sure: frozenset[int] = frozenset()
    replaced: int = 0
    libraries: frozenset[str] = frozenset()
    up: frozenset[str] = frozenset()


def judge_untracked(runs: UntrackedRuns, policy: Policy, *, frames_count: bool) -> tuple[Finding, ...]:
    """Return the findings on the arrays.

    Growth fails over `array_bytes`. What does not grow fails from `retained_bytes` up, unless an installed library holds
    it: libraries fill caches on their first use. `frames_count` tells whether what a running frame holds was left.
    """
    limits = policy._replace(growing_tensors=None, growing_bytes=policy.array_bytes, cycles="ignore")
    if not runs.grows:
        survivors = _left(runs, frames_count=frames_count)
        return _judge_residue([one for one in survivors if _is_residue(one, runs)], runs, limits)
    added, total = added_by_record(runs, policy, frames_count=frames_count)
    if not added:
        return ()
    replaced = _replaced_by_larger(added, runs, _left(runs, frames_count=frames_count))
    return tuple(
        dataclasses.replace(
            one,
            failed=one.failed and one.bytes * MINOR_SHARE > total,
            bytes_per_run=one.bytes_per_run - replaced[one.holder.root if one.holder else ""],
        )
        for one in judge_added(added, limits)
    )


def _replaced_by_larger(added: Sequence[Survivor], runs: UntrackedRuns, left: Sequence[Survivor]) -> Counter[str]:
    """Return by root the bytes of smaller memory whose place the `added` takes: ``X = np.concatenate([X, new])``.

    Only a name or an attribute lets go of what it had. Of what has gone the size alone is known: the nearest is taken.
    """
    free = runs.gone - (Counter(one.size for one in left) - Counter(one.size for one in added))
    replaced: Counter[str] = Counter()
    for one in sorted(added, key=lambda survivor: -survivor.size):
        if one.holder is not None and not _items(one.holder):
            smaller = max((size for size, number in free.items() if number > 0 and size < one.size), default=0)
            free[smaller] -= 1
            replaced[one.holder.root] += smaller
    return replaced


def added_by_record(runs: UntrackedRuns, policy: Policy, *, frames_count: bool) -> tuple[list[Survivor], int]:
    """Return what the recorded re-run has added, and its bytes; nothing up to the limit, or without a record.

    New memory that replaces memory of the same size adds nothing. An attribute's value is replaced before an item.
    """
    added: list[Survivor] = []
    if runs.grows:
        left = runs.gone.copy()
        for one in sorted(_left(runs, frames_count=frames_count), key=_items_first):
            if left[one.size] > 0:
                left[one.size] -= 1
            else:
                added.append(one)
    total = sum(one.size for one in added)
    return (added, total) if total > policy.array_bytes else ([], 0)


def judge_cut(grown: Sequence[int], metric: str) -> tuple[Finding, ...]:
    """Return the note on growth of the heap that arrays may explain: whether they do is unknown.

    `grown` has the bytes of each run, as the counter `metric` tells.
    """
    return (
        Finding(
            kind="host",
            failed=False,
            device="cpu",
            count=0,
            bytes=grown[0],
            bytes_per_run=0,
            fingerprint=fingerprint("unattributed host", None),
            metric=metric,
            evidence=(f"{metric}, run by run: {', '.join(map(format_signed, grown))}", CUT),
            judged=Judged(0, "", cut=CUT),
        ),
    )


def _left(runs: UntrackedRuns, *, frames_count: bool) -> list[Survivor]:
    return [one for one in runs.survivors if frames_count or one.holder is None or one.holder.kind != "frame"]


def _items_first(survivor: Survivor) -> tuple[object, ...]:
    """Order by how many items lead to the memory, then by all that is told of it: not by the order in which it was met."""
    holder, reading = survivor.holder, survivor.reading
    items = 0 if holder is None else _items(holder)
    place = ("", "") if holder is None else (holder.root, holder.text)
    return items, *place, survivor.size, reading.dtype, reading.shape, reading.storage


def _items(holder: Holder) -> int:
    return sum(step.edge.startswith("[") for step in holder.path)


def _is_residue(survivor: Survivor, runs: UntrackedRuns) -> bool:
    holder = survivor.holder
    if holder is None or not holder.named:
        return survivor.reading.storage in runs.sure
    return not any(holder.root.startswith(f"{name}.") for name in runs.imported)


def _judge_residue(survivors: Sequence[Survivor], runs: UntrackedRuns, policy: Policy) -> tuple[Finding, ...]:
    everything = frozenset(range(len(survivors)))
    alive = (everything, everything) if runs.confirmed else (everything,)
    evidence = Evidence(tuple(survivors), alive, let_go={"cpu": runs.replaced}, up=runs.up)
    found = judge(evidence, policy) if survivors else ()
    return tuple(
        dataclasses.replace(one, failed=one.failed and not (one.holder and one.holder.file in runs.libraries))
        for one in found
    )
