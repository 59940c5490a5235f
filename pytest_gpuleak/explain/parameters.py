"""Find what a test is parametrized with, and what lies below it. pytest keeps both until the session ends."""

from __future__ import annotations

import types
from collections import deque
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.heap.referrers import get_referents, is_tracked, reaches_everything
from pytest_gpuleak.heap.safe_access import instance_dict

if TYPE_CHECKING:
    from collections.abc import Collection

MAX_WALKED: Final = 8_000
"""References that are followed downwards: milliseconds."""

_SHARED: Final = (type, types.FunctionType, types.ModuleType)
"""Types of parameters that are no state of the test's own: what hangs on a class or a module is global."""


def parameters_of(item: object) -> dict[str, object]:
    """Return the parameters of pytest's item that may keep an array, by name (`_pytest.python.CallSpec2.params`)."""
    attributes = instance_dict(item) or {}
    parameters = (instance_dict(attributes.get("callspec")) or {}).get("params")
    if type(parameters) is not dict:
        return {}
    return {name: value for name, value in parameters.items() if _may_keep(value)}


def _may_keep(value: object) -> bool:
    return is_tracked(value) and not issubclass(type(value), _SHARED) and not reaches_everything(value)


def containers_below(parameters: Collection[object]) -> list[object] | None:
    """Return the parameters and the containers that they lead to; None where those are too many."""
    found = {id(parameter): parameter for parameter in parameters}
    pending = deque(found.values())
    walked = 0
    while pending:
        referents = get_referents(pending.popleft())
        walked += len(referents)
        if walked > MAX_WALKED:
            return None
        for child in referents:
            if id(child) not in found and _is_container(child) and not reaches_everything(child):
                found[id(child)] = child
                pending.append(child)
    return list(found.values())


def _is_container(value: object) -> bool:
    """Tell whether a value may refer to others. A dict that is not tracked may hold one that was empty and is no more."""
    return is_tracked(value) or type(value) is dict or type(value) is tuple
