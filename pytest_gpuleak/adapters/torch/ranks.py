"""Tell whether this process is one rank of several in torch's default process group, without a call of torch's Python.

A test may have replaced ``torch.distributed.is_initialized`` and the like, and may count their calls.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_C10D: Final = "torch.distributed.distributed_c10d"
_module_dict: Callable[[object], dict[str, Any]] = vars(types.ModuleType)["__dict__"].__get__


def is_rank_of_several() -> bool:
    """Return whether the default process group has other ranks, which would wait for this one.

    Not where they are threads of this process (``MultiThreadedTestCase``) or do not exist (the backend "fake").
    """
    c10d = sys.modules.get(_C10D)
    if type(c10d) is not types.ModuleType:
        return False
    namespace = _module_dict(c10d)
    group = getattr(namespace.get("_world"), "_default_pg", None)
    if group is None:
        return False
    try:
        return int(group.size()) > 1 and _backend_of(group, namespace) != "fake"
    except Exception:  # noqa: BLE001 - a group of another kind: it is not known to be alone
        return True


def _backend_of(group: object, namespace: dict[str, Any]) -> object:
    known = namespace["_world"].pg_map.get(group)
    return known[0] if known else None
