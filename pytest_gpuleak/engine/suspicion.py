"""Tell from the counters alone, at once, whether what a run has added is worth a check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.registry import may_have_untracked_arrays
from pytest_gpuleak.model.readings import HOST, OUTSIDE, OUTSIDE_FLOOR

if TYPE_CHECKING:
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.model.readings import Growth


def may_have_grown(growth: Growth, policy: Policy, *, untracked: bool = True) -> bool:
    """Tell whether any counter may have grown beyond its limit.

    `untracked` applies the lower limits for the arrays that the collector does not track, where there can be any.
    """
    for (device, metric), size in growth.bytes.items():
        if device == HOST:
            least = min(policy.retained_bytes, policy.host_bytes) if untracked else policy.host_bytes
            if size >= max(least, 1) + growth.imported:
                return True
            if untracked and size > policy.array_bytes + growth.imported and may_have_untracked_arrays():
                return True
        elif metric == "reserved":
            if policy.reserved_bytes is not None and size >= max(policy.reserved_bytes, 1):
                return True
        elif metric == OUTSIDE:
            if size >= OUTSIDE_FLOOR:
                return True
        elif metric in ("allocated", "requested") and size >= 1:
            return True
    return False


def is_worth_a_check(growth: Growth, policy: Policy, tracker: RunTracker, knowledge: SessionKnowledge) -> bool:
    """Tell whether to check a test for its growth alone; each call is one test.

    Growth of the host below its limit matters only as arrays: where none was added, it is nearly always a first use.
    """
    if not may_have_grown(growth, policy):
        return False
    if may_have_grown(growth, policy, untracked=False) or tracker.may_have_added_arrays:
        return True
    return knowledge.host_reruns.are_worth_a_doubt(knowledge.elapsed_s, growth.host - growth.imported)
