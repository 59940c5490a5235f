"""Find the process's TensorFlow in `sys.modules` without importing it, whatever tests put there.

The class of eager tensors is held weakly: TensorFlow's C++ side keeps it (`TFE_Py_InitEagerTensor`, pywrap_tensor.cc).
"""

from __future__ import annotations

import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.heap.classes import is_kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

_module_dict: Callable[[object], dict[str, Any]] = vars(types.ModuleType)["__dict__"].__get__
_class_dict: Callable[[type], dict[str, Any]] = vars(type)["__dict__"].__get__

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
        module = sys.modules.get(OPS)
        known = self._known()
        if module is None or type(module) is not types.ModuleType:
            return known
        found = _module_dict(module).get("EagerTensor")
        if found is known or not _is_tensor_class(found):
            return known
        self._known = weakref.ref(found)
        return found


LOOKUP = TensorFlowLookup()
"""The only lookup: a process has one TensorFlow."""


def loaded_module(name: str) -> dict[str, Any] | None:
    """Return the namespace of a loaded module; None if it is not loaded, or if something else stands in its place."""
    found = dict.get(sys.modules, name)
    if type(found) is types.ModuleType or is_kind_of(type(found), types.ModuleType):
        return _module_dict(found)
    return None


def eager_context() -> Any:
    """Return the eager context if a test has initialised it, else None: `context.context()` would create one."""
    namespace = loaded_module(CONTEXT)
    context = None if namespace is None else namespace.get("_context")
    kind = None if namespace is None else namespace.get("Context")
    # Asked twice a test: nearly always it is an instance of the class itself.
    if type(context) is not kind and not (is_kind_of(type(kind), type) and is_kind_of(type(context), kind)):  # type: ignore[arg-type]
        return None
    state = vars(context)
    return context if state.get("_context_handle") is not None and state.get("_initialized") is True else None


def memory_info(context: Any, device: str) -> dict[str, Any]:
    """Return what `tf.config.experimental.get_memory_info` does for a device, without initialising a context.

    Raises KeyError where this TensorFlow does not tell, and TensorFlow's error for a device without statistics.
    """
    ask = (loaded_module("tensorflow.python.pywrap_tfe") or {})["TFE_GetMemoryInfo"]
    found: dict[str, Any] = ask(vars(context)["_context_handle"], device)
    return found


def _is_tensor_class(found: object) -> bool:
    if not is_kind_of(type(found), type):
        return False
    names = _class_dict(found)  # type: ignore[arg-type]
    return all(name in names for name in NEEDED)
