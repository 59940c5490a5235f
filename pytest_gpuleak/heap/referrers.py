"""The collector as the search uses it: the real functions, switched off meanwhile, and the cheapest way up.

While a test runs, the plugin may put wrappers in their place on the `gc` module, so that the test sees the frozen
objects too: those that hide objects are taken from `collector`, which bound them before.
"""

from __future__ import annotations

from gc import disable, enable, get_referents, is_tracked, isenabled
from time import perf_counter, thread_time
from types import ModuleType
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.heap.collector import get_objects, get_referrers
from pytest_gpuleak.heap.safe_access import (
    class_module,
    class_name,
    is_subclass,
    loaded_module,
    module_dict,
    subclasses,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

__all__ = [
    "Deadline",
    "PausedCollector",
    "get_objects",
    "get_referents",
    "is_tracked",
    "leads_astray",
    "referrers",
    "untouchable_modules",
]

SCAN_FROM: Final = 256
"""Objects from which one pass in Python beats `gc.get_referrers`, which compares each reference with each object.

Measured on 170,000 objects: 1 object 11 ms, 100 objects 40 ms, 500 objects 130 ms; the pass 93 ms whatever their
number."""

_CHECK_EVERY: Final = 16_384
_UNTOUCHABLE: Final = "_asyncio"

WALL_FACTOR: Final = 3
"""Seconds by the clock that a second of a budget may take."""


class Deadline:
    """When the search gives up: after `seconds` of this thread's own time, or `WALL_FACTOR` times as many by the clock.

    By the clock alone, a machine that runs a suite on all its cores would cut explanations short at random.
    """

    def __init__(self, seconds: float) -> None:
        self._cpu_end = thread_time() + seconds
        self._end = perf_counter() + WALL_FACTOR * seconds
        self._work = 0
        self._over = False

    def worked(self, steps: int) -> bool:
        """Whether the time is up, after this many more small steps; the clock is read once in `_CHECK_EVERY` of them.

        A loop that counts its rounds alone reads the clock too rarely where each takes a million steps.
        """
        self._work += steps
        if self._work >= _CHECK_EVERY:
            self._work = 0
            self._over = self._over or self.passed()
        return self._over

    def passed(self) -> bool:
        """Whether the time is up."""
        return thread_time() >= self._cpu_end or perf_counter() >= self._end

    def left(self) -> float:
        """Seconds left, 0 at least."""
        return max(0.0, min(self._cpu_end - thread_time(), (self._end - perf_counter()) / WALL_FACTOR))


class PausedCollector:
    """Context in which no automatic collection runs; it leaves the collector as it was.

    A collection in the midst of the search would run strangers' finalisers and weak reference callbacks.
    """

    def __enter__(self) -> None:
        self._was_enabled = isenabled()
        disable()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._was_enabled:
            enable()


def leads_astray(value: object) -> bool:
    """Return whether most of the process can be reached from it: a class, a module, a module's dict, a function's globals."""
    kind = type(value)
    if is_subclass(kind, type) or is_subclass(kind, ModuleType):
        return True
    return kind is dict and "__name__" in value and "__spec__" in value  # type: ignore[operator]  # a dict, exactly


def untouchable_modules() -> frozenset[int]:
    """Return the ids of the objects that `get_referents` must not be called for.

    In CPython 3.12 the traversal of the `_asyncio` module shows its free list of futures' iterators, objects that have
    been freed (Modules/_asynciomodule.c, module_traverse). To refer to one of them frees it a second time, and from
    then on the list is a ring in which every walk over the heap, and every collection, hangs. Seen on 3.12.1.

    A test that restores `sys.modules` after an import leaves the module alive without a name there, and a second import
    makes another one: each has a class `Future` of its own, by which it is missed, and is then looked for on the heap.
    """
    loaded = loaded_module(_UNTOUCHABLE)
    made = 0
    for kind in subclasses(object):
        if class_name(kind) == "Future" and class_module(kind) == _UNTOUCHABLE:
            made += 1
    if made <= (module_dict(loaded) is not None):
        return frozenset((id(loaded),))
    found = {id(loaded)}
    for value in get_objects():
        if type(value) is ModuleType and (module_dict(value) or {}).get("__name__") == _UNTOUCHABLE:
            found.add(id(value))
    return frozenset(found)


def referrers(children: Sequence[object], deadline: Deadline) -> list[object]:
    """Every tracked container that refers to one of `children`, in no particular order.

    Containers of the search itself may be among them: the caller sorts those out. When the deadline passes, what was
    found so far is returned. Clear the list after use: it may hold itself, and no collection would come to free it.
    """
    if len(children) < SCAN_FROM:
        return get_referrers(*children)
    wanted: set[int] = set()
    for child in children:
        wanted.add(id(child))
    containers = get_objects()
    found: list[object] = []  # made after the list above: it must not be among them
    untouchable = untouchable_modules()
    for container in containers:
        if id(container) in untouchable:
            continue
        referents = get_referents(container)
        if not wanted.isdisjoint(map(id, referents)):
            found.append(container)
        if deadline.worked(1 + len(referents)):
            break
    return found
