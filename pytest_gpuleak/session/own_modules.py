"""The modules of this package, each loaded once a session whatever a test does to `sys.modules`.

A test may remove them (`for name in list(sys.modules): del sys.modules[name]`, a snapshot that is put back), and most
are loaded when they are first needed. A second copy would have classes of its own, and what the first copy has made
would be taken for something foreign.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_PREFIX = "pytest_gpuleak."


class OwnModules:
    """The modules of this package that a session has met."""

    def __init__(self) -> None:
        self._known: dict[str, ModuleType] = {}

    def keep(self) -> None:
        """Note the modules that are loaded, and put those back that are known and are not."""
        for name, module in list(sys.modules.items()):
            if type(name) is str and name.startswith(_PREFIX) and module is not None:
                self._known.setdefault(name, module)
        sys.modules.update(self._known)
