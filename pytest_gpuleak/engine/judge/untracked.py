"""Judge arrays that the collector does not track: pure functions from what a walk has found to findings."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.engine.judge.arrays import MINOR_SHARE, judge
from pytest_gpuleak.model.evidence import Evidence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.model.evidence import Survivor
    from pytest_gpuleak.model.findings import Finding, Holder
    from pytest_gpuleak.model.policy import Policy

_NO_PLACE: Final = ("native", "unknown")


@dataclasses.dataclass
class UntrackedRuns:
    """What walks over the heap have found of a suspect.

    Attributes:
        survivors: memory that the recorded re-run added, if there is one (`grows`), or the first run may have left.
        gone: sizes of memory that was freed during the recorded re-run, with their number.
        imported: the modules that the first run imported: their own arrays are no residue.
        sure: keys of memory that the first run certainly left; other memory was chosen by its size.
        libraries: source files of holders that are installed libraries'.
        per_run: bytes of each run's growth that the arrays explain.
    """

    survivors: tuple[Survivor, ...] = ()
    gone: Counter[int] = dataclasses.field(default_factory=Counter)
    grows: bool = False
    confirmed: bool = True
    imported: tuple[str, ...] = ()
    sure: frozenset[int] = frozenset()
    libraries: frozenset[str] = frozenset()
    per_run: int = 0


def judge_untracked(runs: UntrackedRuns, policy: Policy, *, frames_count: bool) -> tuple[Finding, ...]:
    """Return the findings on the arrays, and note in `runs` how much of each run's growth they explain.

    Growth fails over `array_bytes`. What does not grow fails from `retained_bytes` up, unless an installed library holds
    it: libraries fill caches on their first use. `frames_count` tells whether what a running frame holds was left.
    """
    policy = policy._replace(growing_tensors=None, growing_bytes=policy.array_bytes, cycles="ignore")
    survivors = [one for one in runs.survivors if frames_count or one.holder is None or one.holder.kind != "frame"]
    if not runs.grows:
        return _judge_residue([one for one in survivors if _is_residue(one, runs)], runs, policy)
    added = _added(survivors, runs.gone)
    total = sum(one.size for one in added)
    if total <= policy.array_bytes:
        return ()
    runs.per_run = total
    everything = frozenset(range(len(added)))
    found = judge(Evidence(tuple(added), (frozenset(), everything)), policy)
    return tuple(
        dataclasses.replace(one, failed=one.failed and one.bytes * MINOR_SHARE > total)
        for one in found
        if one.kind == "growing"
    )


def _added(survivors: Sequence[Survivor], gone: Counter[int]) -> list[Survivor]:
    """Return the new memory that replaces none of the same size. An attribute's value is replaced before an item."""
    left = gone.copy()
    added: list[Survivor] = []
    for one in sorted(survivors, key=lambda one: _items(one.holder)):
        if left[one.size] > 0:
            left[one.size] -= 1
        else:
            added.append(one)
    return added


def _items(holder: Holder | None) -> int:
    return 0 if holder is None else sum(step.edge.startswith("[") for step in holder.path)


def _is_residue(survivor: Survivor, runs: UntrackedRuns) -> bool:
    holder = survivor.holder
    if holder is None or holder.kind in _NO_PLACE:
        return survivor.reading.storage in runs.sure
    return not any(holder.root.startswith(f"{name}.") for name in runs.imported)


def _judge_residue(survivors: Sequence[Survivor], runs: UntrackedRuns, policy: Policy) -> tuple[Finding, ...]:
    everything = frozenset(range(len(survivors)))
    alive = (everything, everything) if runs.confirmed else (everything,)
    found = judge(Evidence(tuple(survivors), alive), policy) if survivors else ()
    return tuple(
        dataclasses.replace(one, failed=one.failed and not (one.holder and one.holder.file in runs.libraries))
        for one in found
    )
