"""Walk down from the globals and classes of the user's own modules, where most leaks are held."""

from __future__ import annotations

import types
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.explain.roots.module_names import module_names
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.referrers import get_referents, is_tracked, reaches_everything

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Collection, Iterator

    from pytest_gpuleak.explain.roots.module_names import ModuleNames

MAX_WALKED: Final = 8_000
"""References that are followed, nearest first: milliseconds, where a search of the heap takes a quarter of a second."""

MAX_DEPTH: Final = 8
"""References from a global to what it holds."""

_HARNESS: Final = ("_pytest", "pluggy")
"""Packages whose objects lead to all tests, and are not followed."""


class UserGlobals:
    """Knows which modules are the user's own. It keeps their names alone."""

    def __init__(self, is_user_file: Callable[[str], bool]) -> None:
        self._is_user_file = is_user_file
        self._loaded: ModuleNames | None = None
        self._names: list[str] = []

    def namespaces(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the user's modules, by name."""
        loaded = module_names()
        if loaded is not self._loaded:
            self._loaded = loaded
            files = {
                name: safe_access.plain_text(safe_access.loaded(name, "__file__")) for name in loaded.names.values()
            }
            self._names = [name for name, file in files.items() if file is not None and self._is_user_file(file)]
        for name in self._names:
            namespace = safe_access.module_dict(safe_access.loaded_module(name))
            if namespace is not None:
                yield name, namespace

    def add_referrers(
        self,
        found: dict[int, list[Any]],
        named: Counter[tuple[int, int]],
        read: Collection[int],
        young: Collection[int],
    ) -> None:
        """Add to `found` the containers below the globals, by the id of what they refer to, once a reference.

        `named` counts names of a namespace for a value in `found`, by the ids of both; `read` has the ids of containers
        whose references are there already, `young` those of objects that are not followed.
        """
        pending: deque[tuple[Any, int]] = deque()
        room = MAX_WALKED
        for module, namespace in self.namespaces():
            room -= len(namespace)
            for name, value in list(dict.items(namespace)):
                if not is_tracked(value):
                    continue
                pair = id(namespace), id(value)
                if named[pair]:
                    named[pair] -= 1
                else:
                    found.setdefault(id(value), []).append(namespace)
                # By its loader and its specification a module leads to pytest's configuration.
                if not (type(name) is str and name.startswith("__")) and _may_hold(value, module):
                    pending.append((value, MAX_DEPTH))
        met: set[int] = set()
        harness: dict[int, bool] = {}
        while pending:
            parent, depth = pending.popleft()
            if id(parent) in met:
                continue
            met.add(id(parent))
            referents = get_referents(parent)
            room -= len(referents)
            if room < 0:
                return  # a part of its references would be no account
            is_new = id(parent) not in read
            for child in filter(is_tracked, referents):
                if is_new:
                    found.setdefault(id(child), []).append(parent)
                if depth <= 1 or id(child) in young:
                    continue
                kind = type(child)
                if id(kind) not in harness:
                    harness[id(kind)] = any(safe_access.in_package(kind, package) for package in _HARNESS)
                if not (harness[id(kind)] or reaches_everything(child)):
                    pending.append((child, depth - 1))


def _may_hold(value: object, module: str) -> bool:
    """Tell whether a global is worth following: containers, instances, and the module's own classes."""
    kind = type(value)
    if kind is types.FunctionType or kind is types.BuiltinFunctionType or not is_tracked(value):
        return False
    if safe_access.is_subclass(kind, type):
        return safe_access.class_module(value) == module  # type: ignore[arg-type]  # it is a class
    return not reaches_everything(value)
