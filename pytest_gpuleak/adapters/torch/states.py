"""Restore torch's random generators and process settings after a re-run."""

from __future__ import annotations

import contextlib
import sys
import types
from itertools import compress, repeat
from operator import is_, is_not
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.torch.lookup import loaded_torch, torch_class, torch_module
from pytest_gpuleak.model.source_files import PACKAGE, is_installed

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


_READ: dict[tuple[int, int], tuple[str, ...]] = {}
"""By the id and size of a library's namespace, the names of the generators in it."""

_NO_NAMES: tuple[str, ...] = ()


def _module_globals(kind: type) -> list[object]:
    """Return the objects of this type among the globals of modules.

    A library's module is read again only when it has gained or lost a name: 100,000 globals in all take 10 ms a re-run.
    The modules themselves are thousands, so those that are known and without a generator are sorted out in C.
    """
    found: dict[int, object] = {}
    modules = list(sys.modules.values())
    plain = compress(modules, map(is_, map(type, modules), repeat(types.ModuleType)))
    namespaces = list(map(vars, plain))
    places = list(zip(map(id, namespaces), map(len, namespaces), strict=True))
    worth_reading = map(is_not, map(_READ.get, places), repeat(_NO_NAMES))  # there is one empty tuple
    for namespace, place in compress(zip(namespaces, places, strict=True), worth_reading):
        names = _READ.get(place)
        if names is None:
            values = list(namespace.values())
            names = tuple(compress(list(namespace), map(is_, map(type, values), repeat(kind))))
            if _is_of_library(namespace):
                _READ[place] = names
        for name in names:
            value = namespace.get(name)
            if type(value) is kind:
                found[id(value)] = value
    return list(found.values())


def _is_of_library(namespace: dict[str, Any]) -> bool:
    file = namespace.get("__file__")
    return type(file) is not str or is_installed(file) or file.startswith(PACKAGE)
