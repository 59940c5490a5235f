"""Call MLX's functions, which are nanobind's: a mock that a test has put in their place is not called."""

from __future__ import annotations

import sys
from typing import Any

from pytest_gpuleak.heap import safe_access


def native(module: str, name: str) -> Any:
    """Return a function of a loaded module of MLX; None if it is not loaded, has no such function, or has a stand-in."""
    function: Any = safe_access.loaded(module, name)
    return function if safe_access.in_package(type(function), "nanobind") else None


def call(module: str, name: str) -> Any:
    """Call a function without arguments; None if there is none, or where a device fails."""
    function = native(module, name)
    try:
        return None if function is None else function()
    except Exception:  # noqa: BLE001 - a failed device: its memory is unknown
        return None


class CheckedFunctions:
    """Functions without arguments that are called before and after each test: looked up and checked once."""

    def __init__(self, module: str, *names: str) -> None:
        self._name = module
        self._names = names
        self._module: object = None
        self._namespace: dict[str, Any] = {}
        self._functions: list[tuple[str, Any]] = []

    def call(self) -> list[Any] | None:
        """Return what each function returns; None if one is missing, fails, or is replaced by a test's stand-in."""
        module = sys.modules.get(self._name)
        if module is not self._module:
            self._module, self._namespace = module, safe_access.module_dict(module) or {}
            self._functions = [(name, native(self._name, name)) for name in self._names]
        found = []
        for name, function in self._functions:
            is_own = self._namespace.get(name) is function
            if function is None or not is_own:
                return None
            try:
                found.append(function())
            except Exception:  # noqa: BLE001 - a failed device: its memory is unknown
                return None
        return found
