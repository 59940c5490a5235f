"""Run our collections with JAX's guard relaxed, which may end the process when an array is collected."""

from __future__ import annotations

import sys
from gc import collect as collect_unguarded
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RELAXERS", "collect", "collect_unguarded"]

RELAXERS: dict[str, Callable[[], Callable[[], object] | None]] = {}
"""Functions that relax a module's guard, and return how to restore it, or None, by the module. They never raise."""


def collect(generation: int = 2) -> int:
    """Run a collection of the plugin's own."""
    if sys.modules.keys().isdisjoint(RELAXERS):
        return collect_unguarded(generation)
    restores = [
        restore for module, relax in RELAXERS.items() if module in sys.modules and (restore := relax()) is not None
    ]
    try:
        return collect_unguarded(generation)
    finally:
        for restore in restores:
            restore()
