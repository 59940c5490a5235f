"""Find the process's JAX without importing it, and keep its classes: jaxlib cannot be unloaded."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.heap.classes import is_kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

_module_dict: Callable[[object], dict[str, Any]] = vars(types.ModuleType)["__dict__"].__get__

_FINISHED = "jax._src.array"
"""The module that adds shape, dtype and the operators to jaxlib's class of arrays."""

_NATIVE = ("jaxlib._jax", "jaxlib.xla_extension")
"""jaxlib's extension module; the second name up to jaxlib 0.6."""


class JaxLookup:
    """The classes `jaxlib._jax.ArrayImpl` and `jax._src.core.Tracer`; None until JAX is imported completely."""

    def __init__(self) -> None:
        self.array_class: type | None = None
        self.tracer_class: type | None = None
        self.seen: object = None

    def refresh(self) -> None:
        """Look at `sys.modules` again: a test may have imported JAX, removed it, or put a stand-in there."""
        self.seen = sys.modules.get(_FINISHED)
        finished = class_in(self.seen, "ArrayImpl")
        if finished is None or not any(class_in(sys.modules.get(name), "ArrayImpl") is finished for name in _NATIVE):
            self.seen = None  # being imported, or a stand-in
            return
        self.array_class = finished
        self.tracer_class = class_in(sys.modules.get("jax._src.core"), "Tracer") or self.tracer_class


LOOKUP = JaxLookup()
"""The only lookup: a process has one jaxlib."""


def loaded_arrays() -> type | None:
    """Return the class of JAX's arrays; None until JAX is imported."""
    found = sys.modules.get(_FINISHED)
    if found is not LOOKUP.seen or (found is not None and LOOKUP.array_class is None):
        LOOKUP.refresh()
    return LOOKUP.array_class


def loaded_tracers() -> type | None:
    """Return the class of JAX's tracers; None until JAX is imported."""
    loaded_arrays()
    return LOOKUP.tracer_class


def member(module: str, *names: str) -> Any:
    """Return what attributes lead to from a loaded module, by namespaces alone; None where one is missing."""
    found: Any = sys.modules.get(module)
    for name in names:
        if is_kind_of(type(found), types.ModuleType):
            found = _module_dict(found).get(name)
        else:
            found = getattr(found, name, None)
    return found


def class_in(module: object, name: str) -> type | None:
    """Return a class in a module's namespace; None where there is none."""
    found = _module_dict(module).get(name) if is_kind_of(type(module), types.ModuleType) else None
    return found if is_kind_of(type(found), type) else None


def loaded_backends() -> list[Any]:
    """Return the clients of the backends that exist. Asking jax for devices would initialise more."""
    return list(_backends().values())


def backend_names() -> list[str]:
    """Return the names of the backends that exist. Cheap: asked around each test."""
    return list(_backends())


def _backends() -> dict[str, Any]:
    bridge = sys.modules.get("jax._src.xla_bridge")
    found = _module_dict(bridge).get("_backends") if type(bridge) is types.ModuleType else None
    return found if type(found) is dict else {}
