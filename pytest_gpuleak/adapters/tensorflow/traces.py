"""List the living traces of `tf.function`: each registers a function, which goes when its graph is freed."""

from __future__ import annotations

import re
from typing import Any, Final

from pytest_gpuleak.adapters.tensorflow.lookup import eager_context, loaded_names

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
