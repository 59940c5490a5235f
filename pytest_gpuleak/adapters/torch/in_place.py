"""Restore torch in `sys.modules` while the plugin calls torch or runs a test again: a second torch would break it."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.dependencies import entries_restored
from pytest_gpuleak.adapters.torch.lookup import find_module, loaded_torch
from pytest_gpuleak.heap.collector import get_objects, whole_heap
from pytest_gpuleak.heap.safe_access import is_subclass, module_dict, plain_text

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def torch_in_place() -> Iterator[None]:
    """Restore the loaded torch in `sys.modules` within the context, and the former entries of torch afterwards."""
    torch = loaded_torch()
    if torch is None or (sys.modules.get("torch") is torch and sys.modules.get("torch._C") is vars(torch).get("_C")):
        yield
        return
    with entries_restored("torch"):
        sys.modules.update(_modules(torch))
        yield


def _modules(torch: Any) -> dict[str, Any]:
    """Return the loaded torch's modules on the heap by name; of two with a name, the module in its package."""
    found: dict[str, Any] = {"torch": torch}
    with whole_heap():
        modules = [value for value in get_objects() if is_subclass(type(value), types.ModuleType)]
    for module in modules:
        namespace = module_dict(module) or {}
        name = plain_text(namespace.get("__name__")) or ""
        is_part = name.startswith("torch.") and namespace.get("__spec__") is not None
        if is_part and (name not in found or find_module(torch, name) is module):
            found[name] = module
    return found
