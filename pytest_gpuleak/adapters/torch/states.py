"""Restore the random generators of CUDA devices, and torch's process settings, after a re-run."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.torch.lookup import loaded_torch, torch_module

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.adapters.protocol import Restore

_SETTINGS = (
    ("get_default_dtype", "set_default_dtype"),
    ("is_grad_enabled", "set_grad_enabled"),
    ("get_num_threads", "set_num_threads"),
)
"""The functions that read and write each process setting."""


def keep_states() -> list[Restore]:
    """Note torch's settings, and the generators of CUDA devices: their tuple is untracked, so no walk finds them."""
    torch = loaded_torch()
    if torch is None:
        return []
    restores: list[Restore] = []
    with contextlib.suppress(Exception):  # a test's stand-in, or a lost device
        cuda = torch_module("torch.cuda")
        restores += map(_keep_generator, cuda.default_generators if cuda.is_initialized() else ())
    for read, write in _SETTINGS:
        with contextlib.suppress(Exception):
            restores.append(_keep_setting(getattr(torch, read), getattr(torch, write)))
    return restores


def _keep_generator(generator: Any) -> Restore:
    state = generator.get_state()
    return lambda: generator.set_state(state)


def _keep_setting(read: Callable[[], Any], write: Callable[[Any], object]) -> Restore:
    saved = read()

    def restore() -> None:
        if read() != saved:  # setting the number of threads costs time
            write(saved)

    return restore
