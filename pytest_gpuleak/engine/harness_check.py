"""Decide on what the test's runner alone holds, without a re-run. Loaded with the first suspect."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.adapters.arrays import framework_of
from pytest_gpuleak.adapters.bulk import hold_arrays, read_arrays
from pytest_gpuleak.engine.judge.counters import ARRAY_OBJECTS, BLOCK
from pytest_gpuleak.engine.parameter_history import ParameterHistory
from pytest_gpuleak.explain.harness import held_by_harness, holder_of
from pytest_gpuleak.explain.parameters import parameters_of
from pytest_gpuleak.model.evidence import Survivor
from pytest_gpuleak.model.readings import HOST, Growth

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuleak.adapters.protocol import ArrayFramework
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.model.evidence import Keeper
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.policy import Policy


class HarnessVerdict(NamedTuple):
    """The ids of the arrays that are `decided`, the counters' `growth` without them, and notes on what the item keeps."""

    growth: Growth
    findings: tuple[Finding, ...]
    decided: frozenset[int]


class HarnessCheck:
    """Decide on arrays that only running frames, pytest's item with the test's instance, or the parameters hold.

    What frames hold goes when they return. What the item holds does not grow: a note, unless it is as large as fails.
    So is what lies below a parameter, once re-runs of the function's other tests did not grow.
    """

    def __init__(self, tracker: RunTracker, knowledge: SessionKnowledge) -> None:
        self._tracker = tracker
        self._knowledge = knowledge
        self._history = ParameterHistory()

    def learn(self, nodeid: str, findings: Sequence[Finding]) -> None:
        """Take in the verdict on a test for which `check` returned None."""
        self._history.learn(nodeid, findings)

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
        self,
        arrays: Sequence[object],
        growth: Growth,
        item: object,
        test_class: type | None,
        nodeid: str,
        policy: Policy,
        *,
        partly: bool,
    ) -> HarnessVerdict | None:
        """Return what is known of `arrays`, strong references to what the run has left.

        None if all are suspects; unless `partly`, also if any is.
        """
        tracker, knowledge = self._tracker, self._knowledge
        if not tracker.detector.sees_only_young:
            return None
        frameworks = tracker.frameworks.reference_finders()
        held = held_by_harness(arrays, item, test_class, frameworks)
        if held is None or not (held.arrays if partly else held.arrays.issuperset(map(id, arrays))):
            return None
        held_by = held.by
        arrays = [array for array in arrays if id(array) in held.arrays]
        survivors = _survivors(arrays, tracker.guarded_arrays)
        findings: tuple[Finding, ...] = ()
        if held_by != "frames":
            if policy.confirm == 0 or _may_fail(survivors, policy):
                return None
            parameters = list(parameters_of(item).values()) if held_by == "parameters" else []
            if parameters and not self._history.is_constant(nodeid, parameters):
                return None
            holder = holder_of(arrays, item, test_class, held_by, frameworks if knowledge.notes_are_read else None)
            findings = _notes([one._replace(holder=holder) for one in survivors], policy, knowledge, nodeid)
            handles = hold_arrays(arrays, tracker.guarded_arrays)
            if parameters:
                self._history.note(parameters, handles.values())
            sizes = {survivor.reading.storage: survivor for survivor in survivors}
            for handle in handles.values():
                left = sizes.get(handle.storage)
                if left is not None:
                    knowledge.left_behind.note(nodeid, left.reading.device, left.size, handle, holder.text)
        return HarnessVerdict(_without(growth, survivors), findings, held.arrays)


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

    alive = frozenset(range(len(survivors)))
    findings = judge(Evidence(tuple(survivors), (alive, alive)), policy)
    return tuple(described(found, "", knowledge, nodeid) for found in findings)


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
