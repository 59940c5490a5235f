"""Tell from the counters alone, at once, whether what a run has added is worth a check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.registry import may_have_untracked_arrays
from pytest_gpuleak.model.readings import HOST, OUTSIDE, OUTSIDE_FLOOR

if TYPE_CHECKING:
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.model.readings import Growth


def may_have_grown(growth: Growth, policy: Policy, *, untracked: bool = True) -> bool:
    """Tell whether any counter may have grown beyond its limit.

    The host's is `retained_bytes`, if that is less than `host_bytes`: it may be gradients that no code has read. With
    `untracked` it is `array_bytes` where there can be arrays that the collector does not track.
    """
    for (device, metric), size in growth.bytes.items():
        if device == HOST:
            if size >= max(min(policy.retained_bytes, policy.host_bytes), 1) + growth.imported:
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


def is_worth_a_check(growth: Growth, policy: Policy, tracker: RunTracker) -> bool:
    """Tell whether to check a test for its growth alone.

    Growth of the host below its limits matters only as arrays: where the run has left no more than there were, it is
    a first use, or arrays that replaced smaller ones, which are looked for from `retained_bytes` up.
    """
    return may_have_grown(growth, policy, untracked=tracker.may_have_added_arrays)
