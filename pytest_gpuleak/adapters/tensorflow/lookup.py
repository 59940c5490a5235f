"""Find the process's TensorFlow in `sys.modules` without importing it, whatever tests put there.

The class of eager tensors is held weakly: TensorFlow's C++ side keeps it (`TFE_Py_InitEagerTensor`, pywrap_tensor.cc).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.classes import is_kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

OPS = "tensorflow.python.framework.ops"
"""The module that has the class of eager tensors; the public name `tensorflow` is bound later."""

CONTEXT = "tensorflow.python.eager.context"
NEEDED = ("_id", "_shape_tuple", "_datatype_enum", "_handle_data", "device")
"""What the class of eager tensors has in C: a class without it is a stand-in, or of an unknown version."""


class TensorFlowLookup:
    """Remembers the class of eager tensors, since a test may take TensorFlow out of `sys.modules`."""

    def __init__(self) -> None:
        self._known: Callable[[], type | None] = lambda: None

    def tensor_class(self) -> type | None:
        """Return the class of eager tensors; None until TensorFlow is imported so far that tensors can exist."""
        found, known = safe_access.loaded(OPS, "EagerTensor"), self._known()
        if found is known or not _is_tensor_class(found):
            return known
        self._known = weakref.ref(found)
        return self._known()


LOOKUP = TensorFlowLookup()
"""The only lookup: a process has one TensorFlow."""


def loaded_names(module: str) -> dict[str, Any]:
    """Return the namespace of a loaded module; empty if it is not loaded, or if something else stands in its place."""
    return safe_access.module_dict(safe_access.loaded_module(module)) or {}


def eager_context() -> Any:
    """Return the eager context if a test has initialised it, else None: `context.context()` would create one."""
    namespace = loaded_names(CONTEXT)
    context, kind = namespace.get("_context"), namespace.get("Context")
    # Asked twice a test: nearly always it is an instance of the class itself.
    if type(context) is not kind and not (is_kind_of(type(kind), type) and is_kind_of(type(context), kind)):  # type: ignore[arg-type]
        return None
    state = vars(context)
    return context if state.get("_context_handle") is not None and state.get("_initialized") is True else None


def memory_info(context: Any, device: str) -> dict[str, Any]:
    """Return what `tf.config.experimental.get_memory_info` does for a device, without initialising a context.

    Raises KeyError where this TensorFlow does not tell, and TensorFlow's error for a device without statistics.
    """
    ask = loaded_names("tensorflow.python.pywrap_tfe")["TFE_GetMemoryInfo"]
    found: dict[str, Any] = ask(vars(context)["_context_handle"], device)
    return found


def _is_tensor_class(found: object) -> bool:
    if not is_kind_of(type(found), type):
        return False
    names = safe_access.class_dict(found)  # type: ignore[arg-type]
    return all(name in names for name in NEEDED)
