"""Tell whether this process is one rank of several in torch's default process group, without a call of torch's Python.

A test may have replaced ``torch.distributed.is_initialized`` and the like, and may count their calls.
"""

from __future__ import annotations

import sys
import types
from typing import Final

_C10D: Final = "torch.distributed.distributed_c10d"


def is_rank_of_several() -> bool:
    """Return whether the default process group has other ranks, which would wait for this one.

    Not where they are threads of this process (``MultiThreadedTestCase``) or do not exist (the backend "fake").
    """
    c10d = sys.modules.get(_C10D)
    world = vars(c10d).get("_world") if type(c10d) is types.ModuleType else None
    group = getattr(world, "_default_pg", None)
    if world is None or group is None:
        return False
    try:
        known = world.pg_map.get(group)  # the group's backend, and its store
        return int(group.size()) > 1 and not (known and known[0] == "fake")
    except Exception:  # noqa: BLE001 - a group of another kind: it is not known to be alone
        return True
