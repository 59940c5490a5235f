"""List the living traces of `tf.function`: each registers a function, which goes when its graph is freed."""

from __future__ import annotations

import re
from typing import Any, Final

from pytest_gpuleak.adapters.tensorflow.lookup import eager_context

_TRACE: Final = re.compile(r"__inference_(?!__backward)(.*)_\d+", re.DOTALL)
"""Name of a trace. Gradients (``__inference___backward_...``), branches and single operations have other names."""


_last: list[int] = [0, 0]
"""The hash of the names of all functions at the last count, and how many of them are traces."""


def traced_functions() -> list[str]:
    """Return the name of the function of each trace that is alive; none if the context cannot tell."""
    return _traces_in(_function_names())


def count_traces() -> int:
    """Return how many traces are alive. Their names are read only once there are others than at the last count."""
    names = _function_names()
    if not names:
        return 0
    # Not the names themselves: kept, they would be growth of the heap.
    mark = hash(frozenset(names))
    if mark != _last[0]:
        _last[:] = mark, len(_traces_in(names))
    return _last[1]


def _function_names() -> Any:
    context: Any = eager_context()
    try:
        return () if context is None else context.list_function_names()
    except Exception:  # noqa: BLE001 - another version's context
        return ()


def _traces_in(names: Any) -> list[str]:
    texts = (name.decode(errors="replace") if type(name) is bytes else name for name in names)
    return [found[1] for name in texts if (found := _TRACE.fullmatch(name)) is not None]
