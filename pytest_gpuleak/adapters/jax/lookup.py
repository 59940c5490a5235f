"""Find the process's JAX without importing it, and keep its classes: jaxlib cannot be unloaded."""

from __future__ import annotations

import sys
import types
from typing import Any

from pytest_gpuleak.adapters.late import LateClass
from pytest_gpuleak.heap import safe_access

_NATIVE = ("jaxlib._jax", "jaxlib.xla_extension")
"""jaxlib's extension module; the second name up to jaxlib 0.6."""


def _is_jaxlibs(found: type) -> bool:
    """Tell jaxlib's class of arrays from a stand-in, and from what has this name while JAX is being imported."""
    return any(safe_access.loaded(name, "ArrayImpl") is found for name in _NATIVE)


ARRAYS = LateClass("jax._src.array", "ArrayImpl", accepts=_is_jaxlibs)
"""The class of JAX's arrays, to which this module of JAX's adds shape, dtype and the operators."""

TRACERS = LateClass("jax._src.core", "Tracer")


def loaded_backends() -> list[Any]:
    """Return the clients of the backends that exist. Asking jax for devices would initialise more."""
    return list(_backends().values())


def backend_names() -> list[str]:
    """Return the names of the backends that exist. Cheap: asked around each test."""
    return list(_backends())


def _backends() -> dict[str, Any]:
    bridge = sys.modules.get("jax._src.xla_bridge")
    found = vars(bridge).get("_backends") if type(bridge) is types.ModuleType else None
    return found if type(found) is dict else {}
