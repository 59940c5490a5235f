"""Whether `tracemalloc` traces allocations. PyPy has no such tracing."""

from __future__ import annotations

from importlib import util
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING or util.find_spec("_tracemalloc") is not None:
    import tracemalloc

    is_tracing = tracemalloc.is_tracing
    CAN_TRACE: Final = True
else:
    CAN_TRACE: Final = False

    def is_tracing() -> bool:
        """Tell that nothing is traced."""
        return False
