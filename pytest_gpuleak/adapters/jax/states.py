"""Restore JAX's settings after a re-run. Its random keys are values: there is no generator to put back."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.jax.lookup import loaded_arrays, member

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.protocol import Restore


def keep_states() -> list[Restore]:
    """Note the values of ``jax.config``; return a function that restores those that have changed."""
    config: Any = member("jax", "config") if loaded_arrays() is not None else None
    values = getattr(config, "values", None)
    if type(values) is not dict:
        return []
    saved = dict(values)

    def restore() -> None:
        current = config.values
        for name, value in saved.items():
            if current.get(name) is not value and current.get(name) != value:
                with suppress(Exception):  # a setting that cannot change after the first use of a backend
                    config.update(name, value)

    return [restore]
