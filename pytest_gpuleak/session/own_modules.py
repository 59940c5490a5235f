"""Keep this package's modules loaded whatever a test does to `sys.modules`: a second copy would have other classes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_PREFIX = "pytest_gpuleak."


class OwnModules:
    """The modules of this package that a session has loaded."""

    def __init__(self) -> None:
        self._known: dict[str, ModuleType] = {}
        self._last: str | None = None

    def keep(self) -> None:
        """Note loaded modules, and put back known modules that are missing."""
        last = next(reversed(sys.modules), None)
        if last is not self._last:  # an import puts its module last
            for name, module in list(sys.modules.items()):
                if type(name) is str and name.startswith(_PREFIX) and module is not None:
                    self._known.setdefault(name, module)
        sys.modules.update(self._known)
        self._last = next(reversed(sys.modules), None)
