"""The collector's functions as we call them, and a test, when a run starts, of its rules that epochs rest on.

Epochs need `gc.freeze` to hide what is alive, so that `gc.get_objects` shows exactly what is born later. The self-test
decides, no version. docs/developing/collector.md lists each rule, with the versions that it was checked on.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from gc import collect as collect_unguarded
from gc import disable, enable, get_objects, isenabled
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable


RELAXERS: dict[str, Callable[[], Callable[[], object] | None]] = {}
"""Functions that relax a module's guard, and return how to restore it, or None, by the module. They never raise."""


def collect(generation: int = 2) -> int:
    """Run a collection of the plugin's own, with JAX's guard relaxed, which may end the process when an array is collected."""
    restores: list[Callable[[], object]] | None = None  # made for each test: as few steps as can be
    for module, relax in RELAXERS.items():
        if module in sys.modules and (restore := relax()) is not None:
            restores = [*(restores or ()), restore]
    if restores is None:
        return collect_unguarded(generation)
    try:
        return collect_unguarded(generation)
    finally:
        for restore in restores:
            restore()


INTERPRETERS_OWN: Final = 5_000
"""Objects that the interpreter itself may freeze (Python 3.12: a few hundred); user code freezes tens of thousands."""

NEWEST: Final = (3, 15)
"""The newest CPython whose collector is known. The self-test cannot try everything, so later versions are scanned."""


def _nothing() -> int:
    return 0


# PyPy and others have no such functions: a run there scans.
freeze: Final[Callable[[], object]] = getattr(gc, "freeze", _nothing)
unfreeze: Final[Callable[[], object]] = getattr(gc, "unfreeze", _nothing)
get_freeze_count: Final[Callable[[], int]] = getattr(gc, "get_freeze_count", _nothing)

_frozen_before: list[int] = []


class _Ring:
    __slots__ = ("__weakref__", "itself")

    itself: _Ring


def _make_garbage() -> weakref.ref[_Ring]:
    ring = _Ring()
    ring.itself = ring
    return weakref.ref(ring)


def collect_recent() -> None:
    """Run a young collection, as ``gc.collect(1)`` does where there are generations.

    In CPython 3.14.0 to 3.14.4 that does one increment, which may free nothing (Python/gc.c, gc_collect_increment).
    """
    garbage = _make_garbage()
    collect(1)
    if garbage() is not None:
        collect(0)


def collect_unseen() -> None:
    """Run a young collection that `gc.callbacks` are not told of: none runs at that moment without the plugin."""
    callbacks = gc.callbacks
    told = callbacks[:]
    try:
        # By a statement: after a call, a signal handler's exception could arrive.
        del callbacks[:]
        collect_recent()
    finally:
        callbacks[:0] = told  # in front of what another thread has added


def is_free_threaded() -> bool:
    """Tell whether the interpreter is a build without the GIL, even where the GIL has been switched on."""
    # `sysconfig` knows too (``Py_GIL_DISABLED``), but takes 3 ms to load.
    return "free-threading" in sys.version or "t" in getattr(sys, "abiflags", "")


@functools.cache
def why_no_epochs() -> str:
    """Tell why the collector has no epochs, so that the heap is scanned; empty where it has. Tests it once."""
    if sys.implementation.name != "cpython":
        return f"{sys.implementation.name} has a collector of its own"
    if is_free_threaded():
        return "in a free-threaded build it has no generations"
    if sys.version_info[:2] > NEWEST:
        return f"Python {sys.version_info[0]}.{sys.version_info[1]} is newer than this version of the plugin knows"
    if get_freeze_count() > INTERPRETERS_OWN:
        return ""  # what user code has frozen must stay so: such a run scans until user code thaws it
    enabled = isenabled()
    disable()
    _frozen_before.append(get_freeze_count())
    try:
        return broken_rule()
    except Exception as error:  # noqa: BLE001 - an interpreter that does something else altogether is scanned
        return f"its self-test raised {type(error).__name__}"
    finally:
        unfreeze()
        if enabled:
            enable()


def take_frozen_before() -> int:
    """Return how many objects were frozen before the self-test thawed them; the next call returns 0."""
    return _frozen_before.pop() if _frozen_before else 0


def broken_rule() -> str:
    """Return the first rule that does not hold; empty where all do. Leaves the heap frozen or thawed."""
    old, old_garbage = _Ring(), _make_garbage()
    freeze()
    if _is_visible(old) or not get_freeze_count():
        return "gc.freeze() does not hide what is alive"
    young, young_garbage = _Ring(), _make_garbage()
    if not _is_visible(young):
        return "gc.get_objects() does not show what is born after gc.freeze()"
    collect_recent()
    if young_garbage() is not None:
        return "a young collection does not free young garbage"
    if old_garbage() is None or _is_visible(old):
        return "a young collection looks at what is frozen"
    if not _is_visible(young):
        return "gc.get_objects() does not show what has survived a young collection"
    unfreeze()
    return "gc.unfreeze() does not thaw" if get_freeze_count() else ""


def _is_visible(value: Any) -> bool:
    return any(found is value for found in get_objects())
