"""Restore torch's random generators and process settings after a re-run."""

from __future__ import annotations

import contextlib
import sys
import types
from itertools import compress, repeat
from operator import is_
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
        yield from _MODULE_GLOBALS.find(kind)
        with contextlib.suppress(Exception):
            cuda = torch_module("torch.cuda")
            if cuda.is_initialized():
                yield from cuda.default_generators


class _ModuleGlobals:
    """Finds objects of a type among modules' globals. A library's module is read again if its size has changed."""

    def __init__(self) -> None:
        self._modules: list[int] = []
        self._plain: list[bool] = []
        self._sizes: list[int] = []
        self._worth: list[tuple[int, tuple[str, ...] | None]] = []
        self._libraries: dict[tuple[int, int], tuple[str, ...]] = {}

    def find(self, kind: type) -> list[object]:
        namespaces = self._namespaces()
        sizes = list(map(len, namespaces))
        if sizes != self._sizes:
            self._sizes = sizes
            self._sort_out(namespaces, kind)
        found: dict[int, object] = {}
        for index, names in self._worth:
            namespace = namespaces[index]
            for name in _names_of(namespace, kind) if names is None else names:
                value = namespace.get(name)
                if type(value) is kind:
                    found[id(value)] = value
        return list(found.values())

    def _namespaces(self) -> list[dict[str, Any]]:
        modules = list(sys.modules.values())
        identities = list(map(id, modules))
        if identities != self._modules:
            self._modules = identities
            self._plain = list(map(is_, map(type, modules), repeat(types.ModuleType)))
            self._sizes = []
        return list(map(vars, compress(modules, self._plain)))

    def _sort_out(self, namespaces: list[dict[str, Any]], kind: type) -> None:
        known, self._libraries, self._worth = self._libraries, {}, []
        for index, namespace in enumerate(namespaces):
            place = id(namespace), len(namespace)
            names = known.get(place)
            if names is None and _is_of_library(namespace):
                names = _names_of(namespace, kind)
            if names is not None:
                self._libraries[place] = names
            if names != ():
                self._worth.append((index, names))


_MODULE_GLOBALS = _ModuleGlobals()


def _names_of(namespace: dict[str, Any], kind: type) -> tuple[str, ...]:
    values = list(namespace.values())
    return tuple(compress(list(namespace), map(is_, map(type, values), repeat(kind))))


def _is_of_library(namespace: dict[str, Any]) -> bool:
    file = namespace.get("__file__")
    return type(file) is not str or is_installed(file) or file.startswith(PACKAGE)
