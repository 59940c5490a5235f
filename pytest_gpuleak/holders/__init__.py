"""Who keeps an object alive: the shortest path to it from a root that a person can edit.

`search.explain` walks the references backwards from the leaked objects; `roots` says where a walk may end; `edges`
and `paths` write what it found as Python text; `native` is the seam for what the collector cannot see.
"""

from __future__ import annotations

import gc
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpuleak.inspection import Holders


class _CallableModule(types.ModuleType):
    """`pytest_gpuleak.holders` names this package and the function of the public API: importing one is calling neither."""

    def __call__(self, value: object, *, budget_s: float | None = None) -> Holders:
        """See `pytest_gpuleak.inspection.holders`."""
        from pytest_gpuleak.inspection import BUDGET_S, search

        return search(value, BUDGET_S if budget_s is None else budget_s, {_arguments_with(value)})


def _arguments_with(value: object) -> int:
    """The id of the tuple of arguments that calling an instance makes: the youngest one with the value, or 0.

    The interpreter alone refers to it. A loop and no comprehension, whose cell would be one more holder.
    """
    found = 0
    for candidate in gc.get_objects(0):
        if type(candidate) is tuple and len(candidate) == 1 and candidate[0] is value:
            found = id(candidate)
    return found


sys.modules[__name__].__class__ = _CallableModule
