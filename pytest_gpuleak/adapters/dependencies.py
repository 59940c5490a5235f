"""Put things in their place for a while: dependencies as installed, since a test's mock records calls, and functions of ours."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.heap.safe_access import module_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_ModuleSpec: Final = type(types.__spec__)
_ABSENT: Final = object()
_imported: dict[str, Any] = {}


def import_dependency(name: str, *, required: bool = False) -> Any:
    """Return a dependency as it was installed. Raises ImportError; `required` ignores None in `sys.modules`."""
    package = name.partition(".")[0]
    stands = dict.get(sys.modules, package, _ABSENT)
    if stands is None and not required:
        raise ImportError(f"{package} is None in sys.modules")
    if name not in _imported:
        if stands is _ABSENT or is_installed(stands):
            _imported[name] = importlib.import_module(name)
        else:
            with _out_of_the_way(package):
                _imported[name] = importlib.import_module(name)
    return _imported[name]


@contextlib.contextmanager
def dependency_in_place(name: str) -> Iterator[None]:
    """Show an imported dependency in `sys.modules` within the context: psutil looks itself up there in each call."""
    if dict.get(sys.modules, name) is _imported[name]:
        yield
        return
    with _out_of_the_way(name):
        sys.modules[name] = _imported[name]
        yield


def is_installed(module: object) -> bool:
    """Return whether a module was imported from a file rather than created by hand."""
    spec = (module_dict(module) or {}).get("__spec__")
    return type(spec) is _ModuleSpec and type(vars(spec).get("origin")) is str


@contextlib.contextmanager
def _out_of_the_way(package: str) -> Iterator[None]:
    with entries_restored(package) as before:
        for name in before:
            sys.modules.pop(name, None)
        yield


@contextlib.contextmanager
def entries_restored(package: str) -> Iterator[dict[str, Any]]:
    """Restore a package's entries in `sys.modules` after the context, which is given them."""
    before = _entries(package)
    try:
        yield before
    finally:
        for name in _entries(package).keys() - before.keys():
            sys.modules.pop(name, None)
        sys.modules.update(before)


def _entries(package: str) -> dict[str, Any]:
    return {
        name: module
        for name, module in list(dict.items(sys.modules))
        if type(name) is str and (name == package or name.startswith(f"{package}."))
    }


@contextlib.contextmanager
def replaced(owner: Any, name: str, function: Callable[..., object]) -> Iterator[None]:
    """Put a function in the place of an attribute within the context. What other code has put there meanwhile stays."""
    real = getattr(owner, name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        if getattr(owner, name, None) is function:
            setattr(owner, name, real)
