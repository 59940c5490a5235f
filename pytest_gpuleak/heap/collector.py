"""The garbage collector's functions, and the view of them that user code has during an epoch.

`gc.freeze()` hides live objects from `gc`'s functions. Tests that call these must still see the whole heap, so they are
replaced for the session; the originals are bound here, at import.
"""

from __future__ import annotations

import gc
import sys
import types
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from gc import collect as collect_unguarded
from gc import disable, enable, get_objects, get_referrers, isenabled
from itertools import compress
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.heap.collector_rules import (
    INTERPRETERS_OWN,
    collect,
    collect_recent,
    collect_unseen,
    freeze,
    get_freeze_count,
    take_frozen_before,
    unfreeze,
    why_no_epochs,
)
from pytest_gpuleak.heap.lost_signals import LostSignals

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Protocol

    class Listener(Protocol):
        """The owner of the epoch. It is told before the freeze point between old and young objects moves."""

        user_frozen: bool
        """Whether the user's own `gc.freeze()` is in force: what it froze must stay frozen."""
        scanning: bool
        """Whether the epoch has given way to a scan, which freezes nothing."""

        def note(self) -> None:
            """Remember the arrays born so far, which become indistinguishable from old objects."""

        def moved(self) -> None:
            """Record that the freeze point has moved: every live object is old now."""

        def begin_collection(self) -> None:
            """Remember the young arrays, as `note` does: a full collection begins."""

        def end_collection(self) -> None:
            """Record that the full collection froze everything: the freeze point has moved."""


__all__ = ["GcView", "PausedCollector", "calling", "collect", "collect_recent", "collect_unseen", "collect_whole", "collect_young", "current_view", "delivered_again", "epochs_supported", "freeze", "full_collections", "get_freeze_count", "get_objects",
           "get_referrers", "installed", "instances_of", "unfreeze", "whole_heap", "why_no_epochs"]  # fmt: skip


_installed: list[GcView] = []


def installed() -> bool:
    """Tell whether a view is installed. A process has one freeze point, so it can have one epoch."""
    return bool(_installed)


def thaw_in_order() -> None:
    """Unfreeze, in constant time, with the old objects before the young, as in a process that never freezes.

    `gc.unfreeze()` appends them (``gc_list_merge``), and a full collection keeps that order, which jumps in memory.
    """
    freeze()
    unfreeze()


class PausedCollector:
    """Context without automatic collections, which would free a cycle before it is seen, and run user code."""

    _pauses = False

    def __enter__(self) -> PausedCollector:  # noqa: PYI034 - `Self` comes with Python 3.11
        self._pauses = isenabled()
        disable()
        return self

    def resume(self) -> None:
        """Let collections run again, if they did before. May be called before the context ends."""
        if self._pauses:
            self._pauses = False
            enable()

    def __exit__(self, *_error: object) -> None:
        self.resume()


def current_view() -> GcView | None:
    """Return the view that is installed."""
    return _installed[0] if _installed else None


def whole_heap() -> AbstractContextManager[None]:
    """Let the functions of this module see every object, whichever epoch is open and whatever user code has frozen."""
    if _installed:
        return _installed[0].whole_heap()
    return _without_users_freeze() if get_freeze_count() > INTERPRETERS_OWN else nullcontext()


@contextmanager
def _without_users_freeze() -> Iterator[None]:
    collect()  # garbage that is frozen below would stay for good, and seem to be held
    unfreeze()
    try:
        yield
    finally:
        freeze()


def instances_of(kinds: Collection[int]) -> list[Any]:
    """Return the visible objects of the classes with these ids."""
    objects = get_objects()
    # Faster than a comprehension (docs/developing/performance.md).
    return list(compress(objects, map(kinds.__contains__, map(id, map(type, objects)))))


def collect_young() -> int:
    """Collect what was born since the freeze point, if there is one; return how many objects were garbage.

    Not for every test: it lowers CPython's ``long_lived_total``, so the next full collection comes sooner.
    """
    return _installed[0].collect_young() if _installed else 0


def collect_whole() -> None:
    """Run a full collection, also of what user code has frozen, or a look at the whole heap since: it would seem to stay."""
    frozen = _installed[0].frozen_by_user if _installed else get_freeze_count() > INTERPRETERS_OWN
    with whole_heap() if frozen else nullcontext():
        collect()


def full_collections() -> int:
    """Return how many collections of the whole heap have run in this process, as far as that is counted."""
    if _installed:
        return _installed[0].full_collections
    stats = gc.get_stats() if sys.implementation.name == "cpython" else []
    return stats[-1]["collections"] if stats else 0


def watch_signals() -> None:
    """Wrap `sys.unraisablehook` again where another has been set, as pytest does: see `LostSignals`."""
    if _installed and sys.unraisablehook is not _installed[0].signals.hook:
        _installed[0].signals.install()


def delivered_again(unraisable: Any) -> bool:
    """Tell whether an uncatchable exception was a signal handler's that was lost in a callback: see `LostSignals`."""
    return bool(_installed) and _installed[0].signals.handles(unraisable)


@contextmanager
def calling(callback: Callable[[str, dict[str, int]], object]) -> Iterator[None]:
    """Have the collector call a function of ours, whose argument is named ``phase``; no signal is lost in it."""
    callbacks = getattr(gc, "callbacks", None)
    if callbacks is None:  # PyPy tells of no collection
        yield
        return
    ours = _installed[0].signals.others if _installed else []
    callbacks.append(callback)
    ours.append(callback)
    try:
        yield
    finally:
        ours.remove(callback)
        with suppress(ValueError):  # the test may have emptied the list
            callbacks.remove(callback)


def epochs_supported() -> bool:
    """Tell whether the collector passes the self-test of what epochs need (`collector_rules`); else the scan is used."""
    return not why_no_epochs()


class GcView:
    """Replace the functions of ``gc`` by functions that behave as without the plugin.

    Collections cannot be intercepted, so a ``gc.callbacks`` entry makes each full collection full again.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._saved: dict[str, Any] = {}
        self._border_moved = self._thawed = self._frozen = self._collecting = self._young_alone = False
        self._frozen_before = self._own = 0
        self.full_collections = 0
        """Collections of the whole heap since the view was installed, the plugin's own included."""
        self.on_collected: Callable[[], None] = lambda: None
        self.before_aging: Callable[[], None] = lambda: None
        """Called before young objects become old. It must not raise."""
        self.on_full_collection: Callable[[str], None] | None = None
        """Called before and after each collection of the whole heap, as an entry of ``gc.callbacks``. It must not raise."""
        self.around_collect: Callable[[Callable[[], int]], int] | None = None
        """Called with each full collection that user code asks for by `gc.collect`, in its place; None: by itself."""
        self._callback = self._on_collection  # one object, to be known by identity
        self.signals = LostSignals(self._callback)

    def install(self) -> None:
        """Install the callback and the replacements. Raises RuntimeError where another view is installed."""
        if installed():
            raise RuntimeError("another view of the collector is installed in this process")
        self._frozen_before = get_freeze_count() or take_frozen_before()
        for replacement in self._replacements():
            name = replacement.__name__
            original = getattr(gc, name)
            # The original's name, so that it can be pickled like a built-in function.
            replacement.__module__, replacement.__qualname__, replacement.__doc__ = "gc", name, original.__doc__
            self._saved[name] = original
            setattr(gc, name, replacement)
        _installed.append(self)

    def remove(self) -> None:
        """Restore everything. Safe to call twice."""
        for name, original in self._saved.items():
            setattr(gc, name, original)
        self._saved.clear()
        self.signals.remove()
        while self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)
        if self in _installed:
            _installed.remove(self)

    def freeze(self) -> None:
        """Set the freeze point: an epoch begins. Freezes by user code belong to the previous epoch."""
        self._border_moved = self._collecting = False
        if not self._frozen:
            self._frozen = True
            # Only now: importing torch causes hundreds of collections, each with two calls.
            if self._callback not in gc.callbacks:
                gc.callbacks.insert(0, self._callback)  # what it adds to a collection's figures, all others see
        watch_signals()
        self.before_aging()
        freeze()

    def thaw(self) -> None:
        """Remove the freeze point: everything is visible until the next `freeze`."""
        if self._frozen:
            self._frozen = False
            thaw_in_order()

    def collect_young(self) -> int:
        """Run a full collection that sees the young objects alone; return how many were garbage."""
        if self._frozen and not self._thawed and not self._listener.user_frozen:
            self._young_alone = True
            try:
                return collect()
            finally:
                self._young_alone = False
        return 0

    def collect_own(self) -> int:
        """Collect the young objects before user code collects the whole heap; return how many were garbage.

        What that frees then may be garbage of earlier tests, by which growth of the host's memory is a bound and makes a suspect:
        a test whose fixture calls `gc.collect()` after it was run again for its own. User code's callbacks are not told of it, but
        find it in the figures of the collection that follows.
        """
        # Debugging would show each collection, and what delivers a lost signal has to be met by the next one.
        if gc.get_debug() or self.signals.lost:
            return 0
        callbacks = gc.callbacks
        told = callbacks[:]
        ours = [one for one in told if one is self._callback or any(one is other for other in self.signals.others)]
        try:
            callbacks[:] = ours
            self._own = self.collect_young()
            return self._own
        finally:
            callbacks[:] = told + callbacks[len(ours) :]  # with what another thread has added

    @contextmanager
    def whole_heap(self) -> Iterator[None]:
        """Let the unwrapped functions see every object."""
        if self._thawed or self._collecting or not (self._frozen or self._listener.user_frozen):
            yield  # no epoch has begun, whole_heap is active already, or a callback looks while a collection runs
            return
        if self._listener.user_frozen:
            collect()  # garbage that is frozen below would stay for good, and seem to be held
        self._listener.note()
        self.before_aging()
        self._thawed = True
        thaw_in_order()
        try:
            yield
        finally:
            self._thawed = False
            freeze()
            self._border_moved = True
            self._listener.moved()

    @property
    def sees_only_young(self) -> bool:
        """Tell whether the functions of this module show what was born since the freeze point, and no more."""
        return self._frozen and not (self._thawed or self._collecting or self._listener.user_frozen)

    @property
    def frozen_by_user(self) -> bool:
        """Tell whether user code has frozen the heap, so that there is no epoch."""
        return self._listener.user_frozen

    @property
    def border_lost(self) -> bool:
        """Tell whether a full collection thawed the heap, and a signal handler's exception prevented the freeze."""
        return self._collecting

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if self.signals.lost:
            self.signals.go_on(phase)
        if info["generation"] != 2 or self._young_alone:
            return
        if phase == "stop":
            info["collected"] += self._own
            self._own = 0
        self.full_collections += phase == "start"
        if self.on_full_collection is not None:
            self.on_full_collection(phase)
        if self._listener.user_frozen or self._thawed or not self._frozen:
            return
        if phase == "start":
            self._listener.begin_collection()
            self.before_aging()
            self._collecting = True
            thaw_in_order()
        else:
            freeze()
            self._collecting = False
            self._listener.end_collection()
            self.on_collected()

    def _replacements(self) -> list[types.FunctionType]:  # noqa: C901 - six functions, each with few branches
        view, listener = self, self._listener

        def get_objects_(generation: int | None = None) -> list[Any]:
            if listener.user_frozen or generation in (0, 1):  # the young are visible as they are
                return get_objects(generation)
            with view.whole_heap():
                return get_objects(generation)

        def get_referrers_(*objects: Any) -> list[Any]:
            if listener.user_frozen:
                found = get_referrers(*objects)
            else:
                with view.whole_heap():
                    found = get_referrers(*objects)
            # The tuple of arguments refers to them too; without this frame it would not show.
            return [referrer for referrer in found if referrer is not objects]

        def get_freeze_count_() -> int:
            return get_freeze_count() if listener.user_frozen else view._frozen_before

        def freeze_() -> None:
            listener.note()
            view.before_aging()
            listener.user_frozen = True
            freeze()
            listener.moved()

        def unfreeze_() -> None:
            listener.note()
            view.before_aging()
            listener.user_frozen = False
            view._frozen_before = 0
            unfreeze()
            if view._frozen and not listener.scanning:
                freeze()
                view._border_moved = True
            listener.moved()

        def collect_(generation: int = 2) -> int:
            __tracebackhide__ = True  # a failure's text shows only the user's frames, as without the plugin
            if type(generation) is int and generation == 2:
                own = view.collect_own()
                return own + (
                    collect_unguarded() if view.around_collect is None else view.around_collect(collect_unguarded)
                )
            # Otherwise a look at the heap would age young objects past the test's own young collections.
            if view._border_moved and not listener.user_frozen and generation in (0, 1):
                generation = 2
            return collect_unguarded(generation)

        replacements = []
        for function in (get_objects_, get_referrers_, get_freeze_count_, freeze_, unfreeze_, collect_):
            assert isinstance(function, types.FunctionType)
            function.__name__ = function.__name__.rstrip("_")
            replacements.append(function)
        return replacements
