"""Relax JAX's guard against garbage for the plugin's own collections: it would end the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.jax.lookup import member

if TYPE_CHECKING:
    from collections.abc import Callable

_SETTING = "garbage_collect_array"


def relax_garbage_guard() -> Callable[[], object] | None:
    """Let this thread log what a fatal guard would end the process for; return how to undo that, or None."""
    guards: Any = member("jax._src.config", "guard_lib")
    if guards is None:
        return None
    try:
        own, levels = guards.thread_local_state(), guards.GarbageCollectionGuardLevel
        before = getattr(own, _SETTING)
        level = getattr(guards.global_state(), _SETTING) if before is None else before
        if level is None or level != levels.FATAL:
            return None
        setattr(own, _SETTING, levels.LOG)
    except Exception:  # noqa: BLE001 - another version's guard: the collection runs as the user has asked
        return None
    return lambda: setattr(own, _SETTING, before)
