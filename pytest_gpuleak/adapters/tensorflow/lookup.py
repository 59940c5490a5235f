"""Find the process's TensorFlow in `sys.modules` without importing it, whatever tests put there."""

from __future__ import annotations

from typing import Any

from pytest_gpuleak.adapters.late_class import LateClass
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.safe_access import is_subclass

OPS = "tensorflow.python.framework.ops"
"""The module that has the class of eager tensors; the public name `tensorflow` is bound later."""

CONTEXT = "tensorflow.python.eager.context"
NEEDED = ("_id", "_shape_tuple", "_datatype_enum", "_handle_data", "device")
"""What the class of eager tensors has in C: a class without it is a stand-in, or of an unknown version."""


def _is_tensor_class(found: type) -> bool:
    return all(name in safe_access.class_dict(found) for name in NEEDED)


TENSORS = LateClass(OPS, "EagerTensor", accepts=_is_tensor_class)
"""The class of eager tensors; none until TensorFlow is imported so far that tensors can exist. Its C++ side keeps it."""


def loaded_names(module: str) -> dict[str, Any]:
    """Return the namespace of a loaded module; empty if it is not loaded, or if something else stands in its place."""
    return safe_access.module_dict(safe_access.loaded_module(module)) or {}


def eager_context() -> Any:
    """Return the eager context if a test has initialised it, else None: `context.context()` would create one."""
    namespace = loaded_names(CONTEXT)
    context, kind = namespace.get("_context"), namespace.get("Context")
    # Asked twice a test: nearly always it is an instance of the class itself.
    if type(context) is not kind and not (is_subclass(type(kind), type) and is_subclass(type(context), kind)):  # type: ignore[arg-type]
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
