"""Find the process's TensorFlow in `sys.modules` without importing it, whatever tests put there, and its living traces."""

from __future__ import annotations

import re
from typing import Any, Final

from pytest_gpuleak.adapters.late import LateClass
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


_TRACE: Final = re.compile(r"__inference_(?!__backward)(.*)_\d+", re.DOTALL)
"""Name of a trace. Gradients (``__inference___backward_...``), branches and single operations have other names."""


_REGISTRY: Final = "tensorflow.python.eager.polymorphic_function.atomic_function", "RUNTIME_FUNCTION_REFS"
"""Where Python keeps the functions that it has registered, by name, until they are freed."""

_counted: dict[object, int] = {}
"""How many functions were traces at the last count, by a mark of all functions."""


def traced_functions() -> list[str]:
    """Return the name of the function of each trace that is alive; none if the context cannot tell."""
    return _traces_in(_function_names())


def count_traces() -> int:
    """Return how many traces are alive. Their names are read only once there are others than at the last count."""
    registry: Any = loaded_names(_REGISTRY[0]).get(_REGISTRY[1])
    names = None if type(registry) is dict else _function_names()
    if names is None:
        # A new function is the last, and has a name of its own: any change is a change of one of both.
        mark: object = len(registry), next(reversed(registry), None)
    else:
        # Not the names themselves: kept, they would be growth of the heap.
        mark = hash(frozenset(names))
    if mark not in _counted:
        _counted.clear()
        _counted[mark] = len(_traces_in(_function_names() if names is None else names))
    return _counted[mark]


def _function_names() -> Any:
    context: Any = eager_context()
    try:
        return () if context is None else context.list_function_names()
    except Exception:  # noqa: BLE001 - another version's context
        return ()


def _traces_in(names: Any) -> list[str]:
    texts = (name.decode(errors="replace") if type(name) is bytes else name for name in names)
    return [found[1] for name in texts if (found := _TRACE.fullmatch(name)) is not None]
