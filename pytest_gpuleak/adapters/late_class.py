"""Find a class of a framework once the tests have imported it, at the cost of one look into `sys.modules`."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING

from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable


class LateClass:
    """The first of `names` that is a class in an extension `module`, and that `accepts` takes for the framework's own.

    It stays known when a test removes the module.
    """

    def __init__(self, module: str, *names: str, accepts: Callable[[type], bool] | None = None) -> None:
        self._name = module
        self._names = names
        self._accepts = accepts
        self._module: Callable[[], object] = lambda: None
        self._found: type | None = None

    def get(self) -> type | None:
        """Return the class; None until its module is imported."""
        module = sys.modules.get(self._name)
        if module is not self._module():
            self._look_up(module)
        return self._found

    def _look_up(self, module: object) -> None:
        namespace = safe_access.module_dict(module) or {}
        for name in self._names:
            found = namespace.get(name)
            if safe_access.is_a(found, type) and (self._accepts is None or self._accepts(found)):  # type: ignore[arg-type]
                self._found, self._module = found, weakref.ref(module)
                return
