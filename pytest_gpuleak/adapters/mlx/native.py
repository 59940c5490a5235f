"""Call MLX's functions, which are nanobind's: a mock that a test has put in their place is not called."""

from __future__ import annotations

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
