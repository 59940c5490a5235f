"""The collector as the search uses it: the real functions, switched off meanwhile, and the cheapest way up.

While a test runs, the plugin may put wrappers in their place on the `gc` module, so that the test sees the frozen
objects too: those that hide objects are taken from `collector`, which bound them before.
"""

from __future__ import annotations

from gc import disable, enable, get_referents, is_tracked, isenabled
from time import perf_counter
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.collector import get_objects, get_referrers
from pytest_gpuleak.holders.raw import loaded_module

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

__all__ = [
    "Deadline",
    "PausedCollector",
    "get_objects",
    "get_referents",
    "is_tracked",
    "referrers",
    "untouchable_module",
]

SCAN_FROM: Final = 256
"""Objects from which one pass in Python beats `gc.get_referrers`, which compares each reference with each object.

Measured on 170,000 objects: 1 object 11 ms, 100 objects 40 ms, 500 objects 130 ms; the pass 93 ms whatever their
number."""

_CHECK_EVERY: Final = 4096


class Deadline:
    """A point in time, `seconds` from now, after which the search gives up."""

    def __init__(self, seconds: float) -> None:
        self._end = perf_counter() + seconds

    def passed(self) -> bool:
        """Whether the time is up."""
        return perf_counter() >= self._end

    def left(self) -> float:
        """Seconds left, 0 at least."""
        return max(0.0, self._end - perf_counter())


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


def untouchable_module() -> object:
    """The one object that `get_referents` must not be called for, or None.

    In CPython 3.12 the traversal of the `_asyncio` module shows its free list of futures' iterators, objects that have
    been freed (Modules/_asynciomodule.c, module_traverse). To refer to one of them frees it a second time, and from
    then on the list is a ring in which every walk over the heap, and every collection, hangs. Seen on 3.12.1.
    """
    return loaded_module("_asyncio")


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
    untouchable = untouchable_module()
    for index, container in enumerate(containers):
        if container is not untouchable and not wanted.isdisjoint(map(id, get_referents(container))):
            found.append(container)
        if index % _CHECK_EVERY == 0 and deadline.passed():
            break
    return found
