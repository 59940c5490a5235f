"""Tell from the counters alone, at once, whether what a run has added is worth a check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.engine.limits import PROGRAM_BYTES
from pytest_gpuleak.model.readings import HOST, OUTSIDE, OUTSIDE_FLOOR

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.engine.run_tracker import RunTracker
    from pytest_gpuleak.model.policy import Policy
    from pytest_gpuleak.model.readings import Growth


def count_compiled(frameworks: Frameworks, known: int) -> int:
    """Return how many more programs than the `known` ones the frameworks keep; 0 where they cannot be counted."""
    try:
        return max(frameworks.programs_alive() - known, 0)
    except Exception:  # noqa: BLE001 - programs are no memory: the test is judged without them
        return 0


def programs_explain(growth: Growth, compiled: int) -> bool:
    """Tell whether `compiled` more programs than there were explain a run's growth; none explain nothing."""
    most = growth.imported + compiled * PROGRAM_BYTES
    sizes = growth.bytes.items()
    return compiled > 0 and all(size <= (most if device == HOST else 0) for (device, _), size in sizes)


def is_worth_a_check(growth: Growth, policy: Policy, tracker: RunTracker) -> bool:
    """Tell whether to check a test for its growth alone, as far as what was collected in it may have hidden growth.

    Growth of the host below its limit matters only as arrays that no look at the young objects finds: from `array_bytes`
    up where the run has left more of them than there were, and from `retained_bytes` up where it has made gradients.
    """
    growth = growth.at_most()
    for (device, metric), size in growth.bytes.items():
        if device == HOST:
            grown = size - growth.imported
            if grown >= 1 and grown >= tracker.least_host_growth(policy._replace(confirm=1)):
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
