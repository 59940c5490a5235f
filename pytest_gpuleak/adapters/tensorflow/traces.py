"""List the living traces of `tf.function`: each registers a function, which goes when its graph is freed."""

from __future__ import annotations

import re
from typing import Any, Final

from pytest_gpuleak.adapters.tensorflow.lookup import eager_context

_TRACE: Final = re.compile(r"__inference_(?!__backward)(.*)_\d+", re.DOTALL)
"""Name of a trace. Gradients (``__inference___backward_...``), branches and single operations have other names."""


def traced_functions() -> list[str]:
    """Return the name of the function of each trace that is alive; none if the context cannot tell."""
    context: Any = eager_context()
    if context is None:
        return []
    try:
        names = context.list_function_names()
    except Exception:  # noqa: BLE001 - another version's context
        return []
    texts = (name.decode(errors="replace") if type(name) is bytes else name for name in names)
    return [found[1] for name in texts if (found := _TRACE.fullmatch(name)) is not None]
