"""Find referrers with automatic collection paused, by the `gc` functions that `collector` bound before any wrapper."""

from __future__ import annotations

import sys
from gc import get_referents
from itertools import compress, filterfalse, repeat
from operator import is_not
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.heap.collector import get_objects, get_referrers
from pytest_gpuleak.heap.immortal_containers import are_untracked, immortal_referrers, is_tracked
from pytest_gpuleak.heap.safe_access import class_module, is_subclass, loaded_module, module_dict, subclasses_named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from pytest_gpuleak.heap.budget import Budget

SCAN_FROM: Final = 256
"""Number of objects from which one pass in Python beats `gc.get_referrers`. See docs/developing/performance.md."""

_BLOCKS_A_STEP: Final = 16
"""Blocks of memory on a heap of which a pass of `gc.get_referrers`, written in C, walks over in the time of a step.

To count the containers, of which a heap has one for about four blocks, would take as long as the pass.
"""

_BLOCKS_A_CONTAINER: Final = 4

_AT_ONCE: Final = 4_096
"""Objects whose referents are listed together."""

_FEW: Final = 64
"""The same, where each of those that refer to something wanted is asked again by itself."""

_UNTOUCHABLE: Final = "_asyncio"

_allocated_blocks: Final[Callable[[], int]] = getattr(
    sys, "getallocatedblocks", lambda: _BLOCKS_A_CONTAINER * len(get_objects())
)
"""Return the number of blocks of memory that are in use."""


def reaches_everything(value: object) -> bool:
    """Tell whether most of the process is reachable from an object: a class, a module, a dict of globals."""
    kind = type(value)
    if is_subclass(kind, type) or is_subclass(kind, ModuleType):
        return True
    return kind is dict and "__name__" in value and "__spec__" in value  # type: ignore[operator]  # a dict, exactly


def untracked_instances_of(kinds: AbstractSet[int]) -> list[Any]:
    """Return the objects of the classes with these ids that visible objects refer to: the collector tracks none of them."""
    objects, found = get_objects(), dict[int, Any]()
    for start in range(0, len(objects), _AT_ONCE):
        part = objects[start : start + _AT_ONCE]
        # Modules, some of which are untouchable, refer to their dicts, which are visible too.
        referents = get_referents(*compress(part, map(is_not, map(type, part), repeat(ModuleType))))
        untracked = list(filterfalse(is_tracked, referents))
        if not kinds.isdisjoint(map(id, map(type, untracked))):
            found.update((id(one), one) for one in untracked if id(type(one)) in kinds)
    objects.clear()  # it may hold itself
    return list(found.values())


def untouchable_modules() -> frozenset[int]:
    """Return the ids of objects that `get_referents` must not be called for: modules `_asyncio`.

    In CPython 3.12 they show freed iterators of futures (Modules/_asynciomodule.c, module_traverse), which a new
    reference frees a second time: every later heap walk hangs (seen on 3.12.1).
    """
    # A test that restores `sys.modules` may leave several, each with its own class `Future`.
    loaded = loaded_module(_UNTOUCHABLE)
    made = sum(class_module(kind) == _UNTOUCHABLE for kind in subclasses_named(object, "Future"))
    if made <= (module_dict(loaded) is not None):
        return frozenset((id(loaded),))
    modules = (value for value in get_objects() if type(value) is ModuleType)
    found = (id(module) for module in modules if (module_dict(module) or {}).get("__name__") == _UNTOUCHABLE)
    return frozenset((id(loaded), *found))


def visible_blocks() -> int:
    """Return about as many blocks as the visible objects have: beside a frozen heap, these few take no time to count."""
    return _BLOCKS_A_CONTAINER * len(get_objects())


def referrers(children: Sequence[object], budget: Budget, blocks: int | None = None) -> list[object]:
    """Return the tracked or immortal containers that refer to one of `children`, as far as found within the budget.

    The caller removes the search's own, and clears the list: it may hold itself, and collections are paused.
    `blocks` are those that a pass walks over: without it, those of the whole heap.
    """
    if len(children) < SCAN_FROM:
        found = get_referrers(*children)
        budget.worked((_allocated_blocks() if blocks is None else blocks) // _BLOCKS_A_STEP)
        if are_untracked():
            found += immortal_referrers(children, untouchable_modules(), budget.worked)
        return found
    wanted = set(map(id, children))
    containers = get_objects()
    found = []  # created after the list above, so it is not in it
    untouchable = untouchable_modules()
    for start in range(0, len(containers), _FEW):
        some = [one for one in containers[start : start + _FEW] if id(one) not in untouchable]
        referents = get_referents(*some)
        if not wanted.isdisjoint(map(id, referents)):
            found += [one for one in some if not wanted.isdisjoint(map(id, get_referents(one)))]
        if budget.worked(len(some) + len(referents)):
            break
    found += immortal_referrers(children, untouchable, budget.worked)
    return found
