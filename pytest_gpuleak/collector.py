"""The garbage collector's functions, and the view of them that the user's code keeps while an epoch is open.

`gc.freeze()` hides every object alive from `gc.get_objects()`, `gc.get_referrers()` and the collections. A test that
calls them must see the whole heap all the same, so the functions that it looks up on the module are replaced for the
session. The originals are bound here, at import, before any replacement.
"""

from __future__ import annotations

import gc
import sys
import sysconfig
from contextlib import AbstractContextManager, contextmanager, nullcontext
from gc import collect, freeze, get_freeze_count, get_objects, get_referrers, unfreeze
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["GcView", "Listener", "collect", "epochs_supported", "freeze", "get_freeze_count", "get_objects",
           "get_referrers", "installed", "unfreeze", "whole_heap"]  # fmt: skip


_installed: list[GcView] = []


def installed() -> bool:
    """Whether a view is installed: there is one border in a process, so there can be one epoch."""
    return bool(_installed)


def whole_heap() -> AbstractContextManager[None]:
    """Within it the functions of this module see every object, whoever's epoch is open."""
    return _installed[0].whole_heap() if _installed else nullcontext()


def epochs_supported() -> bool:
    """Whether this interpreter's collector has the permanent generation that epochs are made of.

    Free-threaded builds have a collector without generations, and Python 3.14 an incremental one, whose young
    objects and permanent generation behave otherwise: the scan is used there.
    """
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 14):
        return False
    return not sysconfig.get_config_var("Py_GIL_DISABLED")


class Listener(Protocol):
    """Who keeps the epoch: told before the border between old and young objects moves."""

    user_frozen: bool
    """Whether the user's own `gc.freeze()` is in force: what it froze must stay frozen."""
    scanning: bool
    """Whether the epoch has given way to a scan, which freezes nothing."""

    def note(self) -> None:
        """Remember the arrays born so far: they are about to become indistinguishable from old objects."""

    def moved(self) -> None:
        """The border has moved: everything alive is old now."""


class GcView:
    """Replaces the functions of the ``gc`` module by ones that behave as without the plugin.

    A full collection, the user's or an automatic one, is made full again by a ``gc.callbacks`` entry, since a
    collection cannot be intercepted in any other way.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._saved: dict[str, Any] = {}
        self._border_moved = False
        self._thawed = False
        self._frozen = False
        self.on_collected: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Put the callback and the replacements in place. Raises RuntimeError where another view is installed."""
        if installed():
            raise RuntimeError("another view of the collector is installed in this process")
        replacements = {
            "get_objects": self._get_objects,
            "get_referrers": self._get_referrers,
            "get_freeze_count": self._get_freeze_count,
            "freeze": self._freeze,
            "unfreeze": self._unfreeze,
            "collect": self._collect,
        }
        for name, replacement in replacements.items():
            self._saved[name] = getattr(gc, name)
            setattr(gc, name, replacement)
        gc.callbacks.append(self._on_collection)
        _installed.append(self)

    def remove(self) -> None:
        """Put everything back. Safe to call twice."""
        for name, original in self._saved.items():
            setattr(gc, name, original)
        self._saved.clear()
        while self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
        if self in _installed:
            _installed.remove(self)

    def freeze(self) -> None:
        """Draw the border here: an epoch begins. What the user did to the border belongs to the last one."""
        self._border_moved = False
        self._frozen = True
        freeze()

    def thaw(self) -> None:
        """Take the border away: everything is visible until the next `freeze`."""
        if self._frozen:
            self._frozen = False
            unfreeze()

    @contextmanager
    def whole_heap(self) -> Iterator[None]:
        """Within it the unwrapped functions see every object."""
        if self._thawed or not (self._frozen or self._listener.user_frozen):
            yield  # nothing is hidden: no epoch has begun, or another's whole heap is in use
            return
        self._listener.note()
        self._thawed = True
        unfreeze()
        try:
            yield
        finally:
            self._thawed = False
            freeze()
            self._border_moved = True
            self._listener.moved()

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != 2 or self._listener.user_frozen or self._thawed or not self._frozen:
            return
        if phase == "start":
            self._listener.note()
            unfreeze()
        else:
            freeze()
            self._listener.moved()
            self.on_collected()

    def _get_objects(self, generation: int | None = None) -> list[Any]:
        if self._listener.user_frozen:
            return get_objects(generation)
        with self.whole_heap():
            return get_objects(generation)

    def _get_referrers(self, *objects: Any) -> list[Any]:
        if self._listener.user_frozen:
            found = get_referrers(*objects)
        else:
            with self.whole_heap():
                found = get_referrers(*objects)
        # The tuple of arguments refers to them too; without this frame in between nobody would see it.
        return [referrer for referrer in found if referrer is not objects]

    def _get_freeze_count(self) -> int:
        return get_freeze_count() if self._listener.user_frozen else 0

    def _freeze(self) -> None:
        self._listener.note()
        self._listener.user_frozen = True
        freeze()
        self._listener.moved()

    def _unfreeze(self) -> None:
        self._listener.note()
        self._listener.user_frozen = False
        unfreeze()
        if self._frozen and not self._listener.scanning:
            freeze()
            self._border_moved = True
        self._listener.moved()

    def _collect(self, generation: int = 2) -> int:
        # Young objects that a look at the heap made old would escape a young collection that the test counts on.
        if self._border_moved and not self._listener.user_frozen and generation in (0, 1):
            generation = 2
        return collect(generation)
