"""Restore torch's random generators and process settings after a re-run."""

from __future__ import annotations

import contextlib
import sys
import types
from itertools import compress, repeat
from operator import is_
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.torch.lookup import loaded_torch, torch_class, torch_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuleak.adapters.protocol import Restore

_SETTINGS = (
    ("get_default_dtype", "set_default_dtype"),
    ("is_grad_enabled", "set_grad_enabled"),
    ("get_num_threads", "set_num_threads"),
)
"""The functions that read and write each process setting."""


def keep_states() -> list[Restore]:
    """Note torch's settings, and the generators of modules' globals and CUDA devices (the collector tracks none)."""
    torch = loaded_torch()
    if torch is None:
        return []
    restores: list[Restore] = []
    for generator in _generators():
        with contextlib.suppress(Exception):  # the generator's module was replaced
            restores.append(_keep_generator(generator))
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


def _generators() -> Iterator[Any]:
    kind = torch_class("torch._C", "Generator")
    if kind is not None:
        yield from _module_globals(kind)
        with contextlib.suppress(Exception):
            cuda = torch_module("torch.cuda")
            if cuda.is_initialized():
                yield from cuda.default_generators


def _module_globals(kind: type) -> list[object]:
    modules = [module for module in list(sys.modules.values()) if type(module) is types.ModuleType]
    found: dict[int, object] = {}
    for module in modules:
        values = list(vars(module).values())
        # 100,000 values in all, so in C (docs/developing/performance.md).
        found.update((id(value), value) for value in compress(values, map(is_, map(type, values), repeat(kind))))
    return list(found.values())
