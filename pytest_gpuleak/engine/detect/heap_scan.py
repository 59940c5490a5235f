"""Compare every array on the heap before and after. Slow (tens of milliseconds a test), but freezes nothing."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.arrays import array_key, array_types, find_arrays, select_arrays
from pytest_gpuleak.heap.collector import installed, whole_heap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.protocol import ArrayFramework


def visible_objects() -> list[object]:
    """Return every object: what `gc` shows, looked up on the module so that another detector's epoch shows all."""
    if installed():
        return gc.get_objects()
    with whole_heap():
        return gc.get_objects()


class ScanDetector:
    """Detect by two scans of the heap, whose objects `objects` returns."""

    def __init__(
        self, frameworks: Sequence[ArrayFramework], objects: Callable[[], list[object]] = visible_objects
    ) -> None:
        self._frameworks = frameworks
        self._objects = objects
        self._old: set[tuple[int, int]] = set()
        self._callback: Callable[[str, object], None] | None = None

    @property
    def sees_only_young(self) -> bool:
        """Return whether young objects alone are visible; see `Detector.sees_only_young`."""
        return False

    @property
    def hides_older(self) -> bool:
        """Return whether older objects are hidden; see `Detector.hides_older`."""
        return False

    def watch_collections(self, function: Callable[[str], None]) -> None:
        """Call a function before and after each collection in a test: a young one, too, sees garbage of earlier tests."""
        self._callback = lambda phase, _info: function(phase)

    def stop(self) -> None:
        """Forget the arrays seen."""
        self.close()

    def open(self) -> None:
        """Note every array alive."""
        callbacks = getattr(gc, "callbacks", None)  # PyPy has none
        if self._callback is not None and callbacks is not None and self._callback not in callbacks:
            callbacks.append(self._callback)
        self._old = {array_key(array, self._frameworks) for array in self._all()}

    def continue_epoch(self) -> bool:
        """Return False: there is no freeze point."""
        return False

    def look(self) -> list[object]:
        """Return the arrays that were not there at `open`."""
        return [array for array in self._all() if array_key(array, self._frameworks) not in self._old]

    def show_young(self) -> bool:
        """Return False: all is visible."""
        return False

    def take_and_age(self, *, of_fixture: bool = False) -> list[object]:  # noqa: ARG002
        """Like `look`, and count the arrays found as old from now on."""
        born = self.look()
        self._old.update(array_key(array, self._frameworks) for array in born)
        return born

    def find(self, identities: set[int]) -> list[object]:
        """Return arrays by id. Walks the heap."""
        return find_arrays(identities, self._objects(), array_types(self._frameworks))

    def close(self) -> None:
        """Forget the arrays seen; the collector was not changed."""
        self._old.clear()
        callbacks = getattr(gc, "callbacks", None)
        if callbacks is not None and self._callback in callbacks:
            callbacks.remove(self._callback)

    def whole_heap(self) -> AbstractContextManager[None]:
        """Thaw what user code has frozen, or the epoch of another detector, if there is one."""
        return whole_heap()

    def _all(self) -> list[object]:
        bases = array_types(self._frameworks)
        return select_arrays(self._objects(), bases) if bases else []
