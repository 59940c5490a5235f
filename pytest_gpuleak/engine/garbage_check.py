"""Free what a young collection frees, before more is done for a suspect. Loaded with the first test that leaves arrays."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.arrays import array_types
from pytest_gpuleak.adapters.bulk import read_arrays, read_united
from pytest_gpuleak.adapters.storages import is_storage
from pytest_gpuleak.engine.describe import described
from pytest_gpuleak.engine.detect.young_arrays import make_cycle_young
from pytest_gpuleak.engine.judge.arrays import judge_cycles
from pytest_gpuleak.engine.settle.steps import CHEAP_STEPS, Settling
from pytest_gpuleak.engine.stages import CYCLES, READ
from pytest_gpuleak.heap.safe_access import has_weak_references
from pytest_gpuleak.model.findings import Judged

if TYPE_CHECKING:
    import weakref
    from collections.abc import Mapping, Sequence

    from pytest_gpuleak.adapters.protocol import ArrayFramework
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.model.findings import Finding, Holder
    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.model.readings import ArrayReading


@dataclasses.dataclass(frozen=True)
class Garbage:
    """The arrays of a first run that a young collection has freed, and the `rings` that they hung on, by array."""

    freed: tuple[ArrayReading, ...]
    rings: Mapping[int, Holder]


class GarbageCheck:
    """Decide on arrays in cycles, which a young collection frees: nearly all suspects of many suites, and no leak.

    They cost a third of what a suspect costs that goes through all stages (docs/developing/performance.md).
    """

    def __init__(self, tracker: RunTracker, knowledge: SessionKnowledge) -> None:
        self._tracker = tracker
        self._knowledge = knowledge

    def collect(
        self, arrays: list[object], instance: weakref.ref[object] | None, nodeid: str, policy: Policy
    ) -> Garbage | None:
        """Collect what is young, and return what was garbage; `arrays` are left those that stay.

        `instance` is that of the test's class if it is older than the run: it is made young where it refers to itself.
        None where each array must be followed on its own: another thread may drop it, or its type has no weak references,
        or it is a storage, which may outlive its tensor.
        """
        tracker = self._tracker
        if instance is not None and tracker.detector.sees_only_young:
            self._make_young(instance, nodeid)
        if tracker.threaded or not _can_be_followed(arrays, tracker.frameworks.storages):
            return None
        with self._knowledge.safeguards.guard(READ, nodeid):
            readings = (read_united if _are_read(self._knowledge, policy) else read_arrays)(
                arrays, tracker.guarded_arrays
            )
            rings = read_rings(arrays, readings, self._knowledge, nodeid, policy)
            settled = Settling([array for array in arrays if id(array) in readings], tracker.threads)
            arrays.clear()
            settled.run(CHEAP_STEPS)
            arrays += settled.found()
            return Garbage(tuple(readings[identity] for identity in settled.cycles), rings)
        return None

    def _make_young(self, instance: weakref.ref[object], nodeid: str) -> None:
        owner = instance()
        if owner is not None:
            with self._knowledge.safeguards.guard(READ, nodeid):
                make_cycle_young(owner)

    def findings(self, garbage: Garbage, nodeid: str, policy: Policy) -> tuple[Finding, ...]:
        """Return the findings on a test that has left nothing else."""
        found = judge_cycles(garbage.freed, policy, garbage.rings)
        how = Judged(1, "1 young", ("a collection",))
        return tuple(described(one, how, self._knowledge, nodeid) for one in found)


def read_rings(
    arrays: Sequence[object],
    readings: Mapping[int, ArrayReading],
    knowledge: SessionKnowledge,
    nodeid: str,
    policy: Policy,
) -> dict[int, Holder]:
    """Read the cycles among what a first run left, before a collection frees them, where a reader is told."""
    if not arrays or policy.cycles == "ignore" or not _are_read(knowledge, policy):
        return {}
    with knowledge.safeguards.guard(CYCLES, nodeid):
        return knowledge.cycles.read(arrays, {key: reading.storage_bytes for key, reading in readings.items()})
    return {}


def _are_read(knowledge: SessionKnowledge, policy: Policy) -> bool:
    """Tell whether anybody reads what the cycles hold and on what they hang."""
    return knowledge.notes_are_read or policy.cycles == "fail"


def _can_be_followed(arrays: Sequence[object], storages: Sequence[ArrayFramework]) -> bool:
    kinds = array_types(storages)
    one_of_each = {id(type(array)): array for array in arrays}.values()
    return all(has_weak_references(array) and not is_storage(array, kinds) for array in one_of_each)
