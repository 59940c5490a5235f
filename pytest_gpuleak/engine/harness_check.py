"""Decide on what the test's runner alone holds, without a re-run. Loaded with the first suspect."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.adapters.bulk import read_arrays
from pytest_gpuleak.engine.judge.counters import ARRAY_OBJECTS, BLOCK
from pytest_gpuleak.explain.harness import held_by_harness, holder_of
from pytest_gpuleak.model.readings import HOST, Growth

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.model.findings import Finding, Holder
    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.model.readings import ArrayReading


class HarnessVerdict(NamedTuple):
    """What is left to check, and what is known.

    Attributes:
        growth: the growth of the counters without these arrays.
        findings: a note for each device, where the test's instance keeps the arrays.
    """

    growth: Growth
    findings: tuple[Finding, ...]


class HarnessCheck:
    """Decide on arrays that running frames alone hold, or they and pytest's item with the test's instance.

    What frames hold goes when they return. What the item holds is one instance a test, which does not grow: a note,
    unless it is as large as fails.
    """

    def __init__(self, tracker: RunTracker, knowledge: SessionKnowledge) -> None:
        self._tracker = tracker
        self._knowledge = knowledge

    def check(
        self,
        arrays: Sequence[object],
        growth: Growth,
        item: object,
        test_class: type | None,
        nodeid: str,
        policy: Policy,
    ) -> HarnessVerdict | None:
        """Return what is known of the arrays; None if they are suspects.

        Args:
            arrays: strong references to what the run has left.
            growth: what it has added to the counters.
            item: pytest's item of the test.
            test_class: the class of the test's instance, if it has one.
            nodeid: pytest's id of the test.
            policy: the test's policy.
        """
        tracker, knowledge = self._tracker, self._knowledge
        if not tracker.detector.sees_only_young:
            return None
        frameworks = tracker.frameworks.reference_finders()
        held_by = held_by_harness(arrays, item, test_class, frameworks)
        if held_by is None:
            return None
        storages = {reading.storage: reading for reading in read_arrays(arrays, tracker.guarded_arrays).values()}
        findings: tuple[Finding, ...] = ()
        if held_by == "item":
            if policy.confirm == 0 or _may_fail(storages, policy):
                return None
            holder = holder_of(arrays, item, test_class, frameworks if knowledge.notes_are_read else None)
            findings = _notes(storages.values(), holder, policy, knowledge, nodeid)
        return HarnessVerdict(_without(growth, storages), findings)


def _notes(
    readings: Iterable[ArrayReading], holder: Holder, policy: Policy, knowledge: SessionKnowledge, nodeid: str
) -> tuple[Finding, ...]:
    from pytest_gpuleak.engine.describe import described
    from pytest_gpuleak.engine.judge.arrays import judge
    from pytest_gpuleak.model.evidence import Evidence, Survivor

    survivors = tuple(Survivor(0, reading, holder=holder) for reading in readings)
    alive = frozenset(range(len(survivors)))
    return tuple(
        described(found, "", knowledge, nodeid) for found in judge(Evidence(survivors, (alive, alive)), policy)
    )


def _may_fail(storages: Mapping[int, ArrayReading], policy: Policy) -> bool:
    sizes: Counter[str] = Counter()
    for reading in storages.values():
        sizes[reading.device] += reading.storage_bytes
    return any(size >= policy.retained_bytes for size in sizes.values())


def _without(growth: Growth, storages: Mapping[int, ArrayReading]) -> Growth:
    """Return the growth less what these arrays explain of it."""
    exact: Counter[str] = Counter()
    rounded: Counter[str] = Counter()
    for reading in storages.values():
        exact[reading.device] += reading.storage_bytes
        rounded[reading.device] += -(-reading.storage_bytes // BLOCK) * BLOCK
    host = exact["cpu"] + ARRAY_OBJECTS * len(storages)

    def explained(device: str, metric: str) -> int:
        if device == HOST:
            return host
        return rounded[device] if metric == "allocated" else exact[device] if metric == "requested" else 0

    return growth._replace(
        bytes={(device, metric): size - explained(device, metric) for (device, metric), size in growth.bytes.items()}
    )
