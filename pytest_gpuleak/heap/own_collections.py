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
    restores: list[Callable[[], object]] | None = None  # made for each test: as few steps as can be
    for module, relax in RELAXERS.items():
        if module in sys.modules and (restore := relax()) is not None:
            restores = [*(restores or ()), restore]
    if restores is None:
        return collect_unguarded(generation)
    try:
        return collect_unguarded(generation)
    finally:
        for restore in restores:
            restore()
