"""Tell whether an object leads to another one: a value to its weak key, a finaliser to what it waits for."""

from __future__ import annotations

import types
from collections import deque
from gc import get_referents
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.referrers import untouchable_modules

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_WALKED: Final = 2_000


def reaches(starts: Iterable[object], end: object) -> bool:
    """Tell whether `MAX_WALKED` references lead from `starts` to `end`, through no class, module or its globals."""
    pending: deque[object] = deque(starts)
    met: set[int] = set()
    walked = 0
    untouchable = untouchable_modules()
    while pending and walked < MAX_WALKED:
        value = pending.popleft()
        if value is end:
            return True
        if id(value) in met or id(value) in untouchable or _reaches_everything(value):
            continue
        met.add(id(value))
        for child in get_referents(value):
            walked += 1
            if child is end:
                return True
            pending.append(child)
    return False


def _reaches_everything(value: object) -> bool:
    kind = type(value)
    if kind is types.FrameType or any(safe_access.is_subclass(kind, base) for base in (type, types.ModuleType)):
        return True
    namespace: Any = value
    return kind is dict and any(type(key) is str and key == "__builtins__" for key in dict.keys(namespace))
