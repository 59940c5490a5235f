"""Build the parts of `unseen`: functions that note something, and return a function that restores it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.heap.safe_access import loaded, loaded_module

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping

Restore = Callable[[], None]
"""Restores what was noted when it was made."""

_MISSING: Any = object()


def nothing() -> None:
    """Restore nothing."""


def all_of(restores: Iterable[Restore]) -> Restore:
    """Combine them, the last first. A failing function does not stop the others."""
    ordered = list(restores)[::-1]

    def restore() -> None:
        for put_back in ordered:
            with contextlib.suppress(Exception):
                put_back()

    return restore


def keep_each(keepers: Iterable[Callable[[], Restore]]) -> Restore:
    """Call each function and combine what they return. A failing function keeps nothing."""
    restores: list[Restore] = []
    for keep in keepers:
        with contextlib.suppress(Exception):  # a replaced module, an interpreter without the function
            restores.append(keep())
    return all_of(restores)


class Postponed:
    """Restores, once the verdict is reached, what the first re-run found.

    A cache by a temporary folder would look replaced if each re-run were given the folder of the one before. What the
    process is set to is restored with it, by `process`, where wider fixtures may stay set up from one re-run to the next:
    they may have set it.
    """

    def __init__(self, process: Restore | None = None) -> None:
        self.process = process
        self.runs = 0
        self.restore: Restore = nothing

    def begin_run(self, keepers: Iterable[Callable[[], Restore]]) -> int:
        """Call each function before the first re-run; return the number of this one, from 1 on."""
        if not self.runs:
            self.restore = keep_each(keepers)
        self.runs += 1
        return self.runs

    def restore_process(self) -> None:
        """Restore what the process is set to; each re-run that follows does so itself."""
        if self.process is not None:
            self.process()
            self.process = None


def if_loaded(module: str) -> Callable[[Callable[[Any], Restore]], Callable[[], Restore]]:
    """Call the decorated function with the module, and keep nothing where that is not loaded.

    A module that was taken out of `sys.modules`, as pytester does after each run in this process, is still its package's
    attribute: `from unittest import mock` gives that one, and does not put it back.
    """
    package, _, name = module.rpartition(".")

    def decorate(keep: Callable[[Any], Restore]) -> Callable[[], Restore]:
        @functools.wraps(keep)
        def keep_of_module() -> Restore:
            found = loaded_module(module)
            if found is None:
                found = loaded(package, name)
            return nothing if found is None else keep(found)

        return keep_of_module

    return decorate


def keep_names(namespace: MutableMapping[str, Any], names: Iterable[str]) -> Restore:
    """Note the values of these names in the namespace; names that it lacks are removed later."""
    saved = {name: namespace.get(name, _MISSING) for name in names}

    def restore() -> None:
        for name, value in saved.items():
            if value is _MISSING:
                namespace.pop(name, None)
            elif namespace.get(name, _MISSING) is not value:
                namespace[name] = value

    return restore


def keep_value(read: Callable[[], Any], write: Callable[[Any], Any]) -> Restore:
    """Note what one function reads; another writes it later, where it has changed."""
    saved = read()

    def restore() -> None:
        if read() != saved:
            write(saved)

    return restore


def replace(owner: Any, name: str, value: Any) -> Restore:
    """Give an attribute of a module, a class or an object's own another value, until it is restored."""
    saved = vars(owner).get(name, _MISSING)
    setattr(owner, name, value)
    return (
        functools.partial(delattr, owner, name) if saved is _MISSING else functools.partial(setattr, owner, name, saved)
    )


def keep_mapping(mapping: MutableMapping[Any, Any], leave: frozenset[str] = frozenset()) -> Restore:
    """Note all entries of a mapping, by identity; the keys in `leave` are not restored."""
    saved = dict(mapping)

    def restore() -> None:
        for key in [key for key in mapping if key not in saved and key not in leave]:
            del mapping[key]
        for key, value in saved.items():
            if key not in leave and mapping.get(key, _MISSING) is not value:
                mapping[key] = value

    return restore


def keep_list(values: list[Any]) -> Restore:
    """Note the entries of a list, which is restored in place."""
    saved = list(values)

    def restore() -> None:
        if len(values) != len(saved) or any(one is not other for one, other in zip(values, saved, strict=True)):
            values[:] = saved

    return restore
