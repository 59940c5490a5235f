"""Call MLX's functions, which are nanobind's, and keep its random generator.

A mock that a test has put in the place of a function is not called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.adapters.protocol import Restore

_MODULE: Final = "mlx.core.random"
_WORD: Final = 32
"""Bits of each of the two numbers that a key consists of: ``mx.random.key(seed)`` splits the seed into them."""


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


def current_key() -> Any:
    """Return the array that this thread's generator draws from next: each draw makes a new one. None if unknown."""
    state: Any = safe_access.loaded(_MODULE, "state")
    find = native(_MODULE, "__getattr__")  # since MLX 0.32 each thread has a state of its own
    try:
        return (find("state") if state is None else state)[0]
    except Exception:  # noqa: BLE001 - not loaded, or without a state
        return None


def keep_random_state() -> Sequence[Restore]:
    """Note this thread's key as the seed that makes it; return the function that seeds the generator with it."""
    seed = native(_MODULE, "seed")
    if seed is None:
        return ()
    try:
        high, low = current_key().tolist()
    except Exception:  # noqa: BLE001 - no key, or one that a transformation has left behind
        return ()
    return (lambda: seed((high << _WORD) | low),)
