"""Tell whether compiled programs explain what a run has added: they take memory of the host that no array has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.engine.limits import PROGRAM_BYTES
from pytest_gpuleak.model.readings import HOST

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.frameworks import Frameworks
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
