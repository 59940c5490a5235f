"""The plugin's modules, imported as any others are.

pytest rewrites the asserts of each plugin it finds by an entry point, and reads what it has rewritten through a Python
file object (`_read_pyc`, _pytest/assertion/rewrite.py): half of what the check took at the start of a run. What it
would say of an assert that fails in here is of no use to a user.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_PREFIX = __name__.partition(".")[0] + "."


class _OwnModules:
    """Finds the modules of this package, before pytest's hook does, and no others."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path, target) if name.startswith(_PREFIX) else None


def import_plainly() -> Callable[[], None]:
    """Find the modules of this package, from here on, before pytest does; no other import is touched.

    Returns:
        What undoes it.
    """
    if any(finder is _OwnModules for finder in sys.meta_path):
        return lambda: None
    sys.meta_path.insert(0, _OwnModules)
    return _find_no_more


def _find_no_more() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _OwnModules]
