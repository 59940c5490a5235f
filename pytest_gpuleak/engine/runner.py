"""Decide on what the test's runner alone holds, by counting references. Loaded with the first suspect."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.adapters.arrays import array_types, find_arrays, framework_of
from pytest_gpuleak.adapters.bulk import Held, hold_arrays, read_arrays
from pytest_gpuleak.engine.judge.counters import ARRAY_OBJECTS, BLOCK
from pytest_gpuleak.engine.limits import MOST_ALONE
from pytest_gpuleak.explain.harness import held_by_harness, holder_of
from pytest_gpuleak.heap.collector import get_objects
from pytest_gpuleak.model.evidence import Survivor
from pytest_gpuleak.model.readings import HOST, Growth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpuleak.adapters.protocol import ArrayFramework
    from pytest_gpuleak.engine.deaths import Left
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.runs import Runs
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.model.evidence import Keeper
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.policy import Policy

    Keepers = Callable[[Sequence[object]], Mapping[int, Keeper] | None]
    """Tells which arrays the runner alone keeps; None: what holds them is too much to be looked at."""


class RunnerVerdict(NamedTuple):
    """The ids of the arrays that are `decided`, the counters' `growth` without them, and notes on what the item keeps."""

    growth: Growth
    findings: tuple[Finding, ...]
    decided: frozenset[int]


class RunnerCheck:
    """Decide on arrays that only running frames, or pytest's item with the test's instance, hold.

    What frames hold goes when they return. What the item holds does not grow: a note, unless it is as large as fails.
    """

    def __init__(self, tracker: RunTracker, knowledge: SessionKnowledge) -> None:
        self._tracker = tracker
        self._knowledge = knowledge

    def keepers_of(
        self, arrays: Sequence[object], item: object, test_class: type | None
    ) -> Mapping[int, Keeper] | None:
        """Tell of which of `arrays`, strong references, frames or the item with the test's instance are the only keepers.

        None: what holds them is too much to be looked at.
        """
        frameworks, young_alone = self._tracker.frameworks.reference_finders(), self._tracker.detector.sees_only_young
        held = held_by_harness(arrays, item, test_class, frameworks, young_alone=young_alone)
        if held is None:
            return None
        return {} if held.by == "parameters" else dict.fromkeys(held.arrays, held.by)

    def check(
        self, arrays: Sequence[object], growth: Growth, item: object, policy: Policy, *, partly: bool
    ) -> RunnerVerdict | None:
        """Return what is known of `arrays`, strong references to what the run of pytest's `item` has left.

        None if all are suspects; unless `partly`, also if any is.
        """
        tracker, knowledge, test_class = self._tracker, self._knowledge, getattr(item, "cls", None)
        if not tracker.detector.sees_only_young:
            return None
        frameworks = tracker.frameworks.reference_finders()
        held = held_by_harness(arrays, item, test_class, frameworks)
        if held is None or held.by == "parameters":
            return None
        if not (held.arrays if partly else held.arrays.issuperset(map(id, arrays))):
            return None
        arrays = [array for array in arrays if id(array) in held.arrays]
        survivors = _survivors(arrays, tracker.guarded_arrays)
        findings: tuple[Finding, ...] = ()
        if held.by == "item":
            if policy.confirm == 0 or _may_fail(survivors, policy):
                return None
            holder = holder_of(arrays, item, test_class, held.by, frameworks if knowledge.notes_are_read else None)
            nodeid = getattr(item, "nodeid", "")
            findings = _notes([one._replace(holder=holder) for one in survivors], policy, knowledge, nodeid)
            handles = hold_arrays(arrays, tracker.guarded_arrays)
            sizes = {survivor.reading.storage: survivor for survivor in survivors}
            for handle in handles.values():
                left = sizes.get(handle.storage)
                if left is not None:
                    reading = left.reading if left.owned else left.reading._replace(storage_bytes=0)
                    knowledge.left_behind.note(nodeid, Held(handle, reading), holder.text)
        return RunnerVerdict(_without(growth, survivors), findings, held.arrays)


def _ask(arrays: list[object], keepers_of: Keepers) -> dict[int, Keeper]:
    """Ask what keeps the arrays (emptied here), one by one where what holds them together is too much to be looked at."""
    together = keepers_of(arrays) if arrays else {}
    keepers = dict(together or {})
    if together is None and 1 < len(arrays) <= MOST_ALONE:
        while arrays:
            alone = [arrays.pop()]
            keepers.update(keepers_of(alone) or {})
            alone.clear()
    arrays.clear()
    return keepers


def find_kept_by_runner(runs: Runs, tracker: RunTracker, keepers_of: Keepers) -> dict[int, Keeper]:
    """Return what the first run, or runs before the last, left and the test's runner alone keeps, by the survivors' indices.

    pytest keeps the instance on which a test ran first, and so does a frame of pytest-flaky's, while a re-run has one of
    its own. What the first instance refers to lives on when the re-run has replaced it everywhere else.
    """
    older = [left for left in runs.living() if left.run < max(1, runs.count - 1)]
    if not older or not runs.living(of_last=True):
        return {}
    # A class's fixture that the re-run has set up again has made older what the first run left.
    visible = runs.objects(older)
    complete = len(visible) == len({left.held.reading.identity for left in older})
    visible.clear()
    with contextlib.nullcontext() if complete else tracker.detector.whole_heap():
        arrays = runs.objects(older)
        # What the runner was known to hold alone may refer to the others by native code.
        arrays += find_arrays(set(runs.decided), get_objects(), array_types(tracker.guarded_arrays))
        keepers = _ask(arrays, keepers_of)
    sharing: dict[int, list[Left]] = defaultdict(list)
    for left in older:
        sharing[left.index].append(left)
    return {
        index: keepers[same[0].held.reading.identity]
        for index, same in sharing.items()
        if keepers.keys() >= {left.held.reading.identity for left in same}
    }


def _survivors(arrays: Sequence[object], frameworks: Sequence[ArrayFramework]) -> list[Survivor]:
    """Return the storages of the arrays; those that older arrays use too are not owned."""
    readings = read_arrays(arrays, frameworks)
    ours = Counter(reading.storage for reading in readings.values())
    found: dict[int, Survivor] = {}
    for array in arrays:
        reading = readings.get(id(array))
        if reading is None or reading.storage in found:
            continue
        users = framework_of(array, frameworks).storage_users(array)
        found[reading.storage] = Survivor(0, reading, owned=users is None or users <= ours[reading.storage])
    return list(found.values())


def _notes(
    survivors: Sequence[Survivor], policy: Policy, knowledge: SessionKnowledge, nodeid: str
) -> tuple[Finding, ...]:
    from pytest_gpuleak.engine.describe import described
    from pytest_gpuleak.engine.judge.arrays import judge
    from pytest_gpuleak.model.evidence import Evidence
    from pytest_gpuleak.model.findings import Judged

    alive = frozenset(range(len(survivors)))
    findings = judge(Evidence(tuple(survivors), (alive, alive)), policy)
    return tuple(described(found, Judged(1, "3 the runner holds it"), knowledge, nodeid) for found in findings)


def _may_fail(survivors: Iterable[Survivor], policy: Policy) -> bool:
    sizes: Counter[str] = Counter()
    for survivor in survivors:
        sizes[survivor.reading.device] += survivor.size
    return any(size >= policy.retained_bytes for size in sizes.values())


def _without(growth: Growth, survivors: Sequence[Survivor]) -> Growth:
    exact: Counter[str] = Counter()
    rounded: Counter[str] = Counter()
    for survivor in survivors:
        exact[survivor.reading.device] += survivor.size
        rounded[survivor.reading.device] += -(-survivor.size // BLOCK) * BLOCK
    host = exact["cpu"] + ARRAY_OBJECTS * len(survivors)

    def explained(device: str, metric: str) -> int:
        if device == HOST:
            return host
        return rounded[device] if metric == "allocated" else exact[device] if metric == "requested" else 0

    return growth._replace(
        bytes={(device, metric): size - explained(device, metric) for (device, metric), size in growth.bytes.items()}
    )
