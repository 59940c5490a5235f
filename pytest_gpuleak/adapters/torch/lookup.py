"""Find the process's torch without importing it, whatever tests do to `sys.modules`: a second import breaks torch.

In 2.13 `torch._C` then frees the first's method tables. So torch is remembered once found, or found by its classes.
Held are `TensorBase` and `StorageBase`, static C types, and the module weakly, since C++ keeps it (THPVariableClass).
"""

from __future__ import annotations

import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.heap.library_types import extension_class
from pytest_gpuleak.heap.safe_access import class_dict, is_subclass, module_dict, read_name, subclasses

if TYPE_CHECKING:
    from collections.abc import Callable

MADE_FIRST = "torch.version"
"""A module that `torch/__init__.py` imports before `torch._C`: a second instance proves a second import of torch."""

MODULES = ("xpu", "mtia", "hpu")
"""Devices with their own module in or beside torch, apart from CUDA, MPS and PrivateUse1."""


class TorchLookup:
    """The process's torch: `module()` and its classes, None until seen; why it is `broken`, empty if all is well."""

    def __init__(self) -> None:
        self.module: Callable[[], types.ModuleType | None] = lambda: None
        self.tensor_base: type | None = None
        self.storage_base: type | None = None
        self.folders = 0
        self.broken = ""

    def refresh(self) -> None:
        """Look for torch, or for damage to it. Call it when `sys.modules` has another object for torch."""
        loaded = sys.modules.get("torch")
        if self.tensor_base is not None:
            self.broken = self.broken or self._why_broken()
        elif _is_torch(loaded):
            self._take(loaded)  # type: ignore[arg-type] # a module, as was just checked
        elif not _is_being_imported(loaded):
            self._search_classes()

    def _take(self, module: types.ModuleType) -> None:
        core = vars(vars(module)["_C"])
        self.tensor_base, self.storage_base = core["TensorBase"], core.get("StorageBase")
        self.module = weakref.ref(module)

    def _search_classes(self) -> None:
        """Find a torch that was imported and removed again: its folder stays in `sys.path_importer_cache`."""
        if len(sys.path_importer_cache) == self.folders:
            return
        self.folders = len(sys.path_importer_cache)
        base = extension_class("torch._C", "TensorBase")
        found = (_torch_of(tensor) for tensor in subclasses(base)) if base is not None else ()
        module = next(filter(None, found), None)
        if module is not None:
            self._take(module)

    def _why_broken(self) -> str:
        """Return why torch is broken: C++ initialised twice. An import that stops before that does no harm."""
        first = self.module()
        if first is None:
            return ""
        if sys.modules.get("torch._C") is vars(first).get("_C"):
            return ""
        made, before = sys.modules.get(MADE_FIRST), find_module(first, MADE_FIRST)
        if (
            made is None
            or made is before
            or type(made) is not types.ModuleType
            or _spec_of(made).get("origin") != _spec_of(before).get("origin")
        ):
            return ""
        return "torch was removed from sys.modules and imported a second time, which torch does not support"


LOOKUP = TorchLookup()
"""The only lookup: a process has one torch."""


def loaded_torch() -> Any:
    """Return the module torch if it is imported completely; else None."""
    if LOOKUP.tensor_base is None:
        LOOKUP.refresh()
    torch = LOOKUP.module()
    if torch is None:
        torch = sys.modules.get("torch")
        if type((module_dict(torch) or {}).get("_C")) is not types.ModuleType:
            return None  # a test may put anything there
    # `cuda` is bound near the end of the import.
    return torch if "cuda" in vars(torch) else None


def torch_module(name: str) -> Any:
    """Return a module of the loaded torch, or None: from its package first, since `sys.modules` may have a mock."""
    torch = loaded_torch()
    found = None if torch is None else find_module(torch, name)
    if found is None:
        found = sys.modules.get(name)
    return found if is_subclass(type(found), types.ModuleType) else None


def torch_class(module: str, name: str) -> type | None:
    """Return a class of the loaded torch; None if its module is not imported."""
    found = (module_dict(torch_module(module)) or {}).get(name)
    return found if is_subclass(type(found), type) else None


def accelerator_names(torch: Any) -> list[str]:
    """Return the device types with a module `torch.<type>` whose functions resemble those in `torch.cuda`."""
    names = [name for name in MODULES if name in vars(torch)]
    private = getattr(torch._C, "_get_privateuse1_backend_name", None)
    if private is not None and private() in vars(torch) and private() not in names:
        names.append(private())
    return names


def find_module(torch: types.ModuleType, name: str) -> types.ModuleType | None:
    """Return the module that a dotted name leads to from `torch` by attributes; None if a part is missing."""
    found: Any = torch
    path = "torch"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        found = vars(found).get(part)
        if (module_dict(found) or {}).get("__name__") != path:
            return None
    return found  # type: ignore[no-any-return] # a module, as was just checked


def _is_torch(module: object) -> bool:
    names = module_dict(module) or {}
    extension, tensor = names.get("_C"), names.get("Tensor")
    base = vars(extension).get("TensorBase") if type(extension) is types.ModuleType else None
    return base is not None and is_subclass(type(tensor), type) and is_subclass(tensor, base)  # type: ignore[arg-type]


def _spec_of(module: object) -> dict[str, Any]:
    """Return what a module's spec has; nothing for a stand-in."""
    spec = (module_dict(module) or {}).get("__spec__")
    return vars(spec) if type(spec) is type(types.__spec__) else {}


def _is_being_imported(module: object) -> bool:
    """Return whether the module's import is under way (importlib/_bootstrap.py, ModuleSpec._initializing)."""
    return bool(_spec_of(module).get("_initializing"))


def _torch_of(tensor: type) -> types.ModuleType | None:
    if read_name(tensor) != "Tensor":
        return None
    for method in list(class_dict(tensor).values()):
        if type(method) is types.FunctionType and method.__globals__.get("__name__") == "torch._tensor":
            module = method.__globals__.get("torch")
            if _is_torch(module) and vars(module).get("Tensor") is tensor:
                return module
    return None
