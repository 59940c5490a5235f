"""Restore torch in `sys.modules` while the plugin calls torch or runs a test again: a second torch would break it."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.torch.lookup import find_module, loaded_torch
from pytest_gpuleak.heap.classes import is_kind_of
from pytest_gpuleak.heap.collector import get_objects, whole_heap

if TYPE_CHECKING:
    from collections.abc import Iterator

_module_dict = vars(types.ModuleType)["__dict__"].__get__


@contextlib.contextmanager
def torch_in_place() -> Iterator[None]:
    """Restore the loaded torch in `sys.modules` within the context, and the former entries of torch afterwards."""
    torch = loaded_torch()
    if torch is None or (
        sys.modules.get("torch") is torch and sys.modules.get("torch._C") is _module_dict(torch).get("_C")
    ):
        yield
        return
    before = _entries()
    sys.modules.update(_modules(torch))
    try:
        yield
    finally:
        for name in _entries().keys() - before.keys():
            sys.modules.pop(name, None)
        sys.modules.update(before)


def _entries() -> dict[str, Any]:
    return {
        name: module
        for name, module in list(dict.items(sys.modules))
        if type(name) is str and (name == "torch" or name.startswith("torch."))
    }


def _modules(torch: Any) -> dict[str, Any]:
    """Return the loaded torch's modules on the heap by name; of two with a name, the module in its package."""
    found: dict[str, Any] = {"torch": torch}
    with whole_heap():
        modules = [value for value in get_objects() if is_kind_of(type(value), types.ModuleType)]
    for module in modules:
        namespace = _module_dict(module)
        name = namespace.get("__name__") if type(namespace) is dict else None
        if type(name) is not str or not name.startswith("torch.") or namespace.get("__spec__") is None:
            continue
        if name not in found or find_module(torch, name) is module:
            found[name] = module
    return found
