"""Detect by epochs what was born since a moment, at a cost that does not depend on the size of the heap.

`gc.freeze()` makes all that lives permanent in constant time (``gc_list_merge``, Modules/gcmodule.c):
`gc.get_objects()` then returns exactly what was born since.
"""

from __future__ import annotations

import gc
from itertools import compress
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.arrays import (
    are_plain,
    array_key,
    array_types,
    find_arrays,
    select_among_strange,
    select_arrays,
)
from pytest_gpuleak.adapters.bulk import hold_arrays
from pytest_gpuleak.engine.detect.young_arrays import KeepYoung, YoungIds, make_young
from pytest_gpuleak.engine.limits import LEAST_FROZEN, LEAST_STAYING, LEAST_STEP, LONG_LIVED_SHARE
from pytest_gpuleak.heap.collector import (
    GcView,
    PausedCollector,
    collect,
    collect_recent,
    collect_unseen,
    get_freeze_count,
    get_objects,
    whole_heap,
)
from pytest_gpuleak.heap.collector_rules import INTERPRETERS_OWN

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.protocol import ArrayFramework, StorageHandle
    from pytest_gpuleak.engine.detect.heap_scan import ScanDetector


class EpochDetector:
    """Detect by epochs."""

    def __init__(self, frameworks: list[ArrayFramework]) -> None:
        self.frameworks = frameworks
        self._scanner: ScanDetector | None = None
        self._any_framework = False  # until then it is cheaper to ask for classes than to look at the objects
        self._noted: set[int] = set()
        self._hidden = YoungIds()
        """Ids of what was young when the freeze point moved: what is old and has one of them is the epoch's."""
        self._older: dict[tuple[int, int], StorageHandle] = {}  # the epoch's arrays that count as old, by key
        self._continued = False
        self._youth: KeepYoung | None = None
        self._collected_in_epoch = False
        self._open = False
        self._started = False
        self._grown = 0
        self._frozen_since_count = 0
        self._staying = 1.0
        self._long_lived: int | None = None
        self._due_at = LEAST_FROZEN
        self._fresh = True
        self._view = GcView(self)
        self._view.on_collected = self._collected
        self.scanning = False
        self.user_frozen = False

    @property
    def _scan(self) -> ScanDetector:
        if self._scanner is None:
            from pytest_gpuleak.engine.detect.heap_scan import ScanDetector

            self._scanner = ScanDetector(self.frameworks, get_objects)
        return self._scanner

    @property
    def sees_only_young(self) -> bool:
        """Tell whether the epoch alone is visible: not after a full collection or a look at the heap, which hide older births."""
        return self.hides_older and not (self._noted or self._hidden or self._collected_in_epoch)

    @property
    def hides_older(self) -> bool:
        """Tell whether a freeze point hides older objects, those from before the epoch and maybe more."""
        return self._open and not (self.scanning or self._view.border_lost)

    def start(self) -> None:
        """Install the collector's view."""
        if not self._started:
            # What user code has frozen must not be thawed here.
            self.user_frozen = get_freeze_count() > INTERPRETERS_OWN
            self._view.install()
            self._started = True

    def watch_collections(self, function: Callable[[str], None]) -> None:
        """Call a function before and after each collection of the whole heap, with ``start`` and ``stop``."""
        self._view.on_full_collection = function

    def pass_collections(self, around: Callable[[Callable[[], int]], int] | None) -> None:
        """Call `around` with each full collection that user code asks for by `gc.collect`, in its place."""
        self._view.around_collect = around

    def stop(self) -> None:
        """Thaw what was frozen here and restore the collector's functions."""
        if self._started:
            self._started = self._open = False
            self._view.remove()
            self._forget()
            self._hidden.clear()
            if not self.user_frozen:
                self._view.thaw()

    def open(self) -> None:
        """Freeze, so that everything alive is old. Falls back to a scan while the user has frozen objects."""
        self._forget()
        self._hidden.clear()
        self._continued = False
        # Objects frozen by tests must stay frozen: an epoch could then never thaw for a full collection.
        self.scanning = self.user_frozen
        self._open = True
        if self.scanning:
            self._scan.open()
        elif self._fresh:
            self._fresh = False  # all that was imported is still young, and not worth a collection
            self._view.freeze()
        else:
            self._keep_heap_small()
            self._view.freeze()

    def continue_epoch(self) -> bool:
        """Count the epoch's arrays as old, and leave them young for the collector."""
        self.show_young()
        if not self.sees_only_young:
            return False
        types = array_types(self.frameworks)
        # To hold arrays makes the objects of their storages, which are as old as they: a fixture's setup would be given these.
        hold_arrays(select_arrays(get_objects(), types), self.frameworks)
        arrays = select_arrays(get_objects(), types)
        handles = hold_arrays(arrays, self.frameworks)
        self._older = {array_key(array, self.frameworks): handles[id(array)] for array in arrays}
        self._continued = True
        return True

    def look(self) -> list[object]:
        """Return the epoch's arrays; arrays noted before the freeze point moved are found on the whole heap."""
        select = select_arrays
        if self._any_framework and self.sees_only_young:
            if are_plain(get_objects()):
                return []  # most tests leave no arrays: which classes are arrays need not be asked
            select = select_among_strange
        bases = array_types(self.frameworks)
        if not bases:
            return []
        self._any_framework = True
        if self._view.border_lost:
            self._view.freeze()  # what was born is known up to the collection that lost the freeze point
        born = self._scan.look() if self.scanning else select(get_objects(), bases)
        if self._noted:
            older = self._noted - {id(array) for array in born}
            if older:
                born += self.find(older)
        if self._older:
            born = [array for array in born if not self._is_older(array)]
        return born

    def _is_older(self, array: object) -> bool:
        # What was garbage may have been collected since, and this one have its place: the key alone does not tell.
        handle = self._older.get(array_key(array, self.frameworks))
        return handle is not None and handle.alive()

    def show_young(self) -> bool:
        """Make young again what the epoch made, where a collection of the whole heap, or a look at it, has made it old.

        Return whether one had. Other objects may have taken the ids of dead ones meanwhile: they become young too, which does no harm.
        """
        move = make_young()
        if move is None or self.sees_only_young or not self.hides_older:
            return False
        with PausedCollector():
            with self.whole_heap():  # what is young now is noted
                objects, hidden = get_objects(), self._hidden.all()
                young = list(compress(objects, map(hidden.__contains__, map(id, objects))))
                objects.clear()
            for value in young:
                move(value)
            young.clear()
        self._noted.clear()
        self._hidden.clear()
        self._collected_in_epoch = False
        return True

    def take_and_age(self, *, of_fixture: bool = False) -> list[object]:
        """Like `look`, and count everything as old from now on."""
        born = self.look()
        self._forget()
        if not self._continued:
            self._hidden.clear()
        elif of_fixture:
            self._hidden.remove(get_objects())
        else:  # a re-run sets a wider fixture up: what the runs before have left is to be shown again
            self._hidden.add(get_objects())
        if self.scanning:
            self._scan.open()
        else:
            self._view.freeze()
        return born

    def find(self, identities: set[int]) -> list[object]:
        """Return arrays by id. Walks the heap."""
        with self.whole_heap():
            return find_arrays(identities, get_objects(), array_types(self.frameworks))

    def close(self) -> None:
        """Collect the epoch's garbage if the collector is on: `gc.freeze()` resets its counters."""
        self._open = False
        if self.scanning:
            self._scan.close()
        elif gc.isenabled():
            collect_unseen()

    def keep_frozen(self) -> None:
        """Hide what is alive from every collection until the process ends: walking it might crash."""
        if self._started:
            self._view.freeze()
            self.user_frozen = True

    def whole_heap(self) -> AbstractContextManager[None]:
        """Thaw for the duration, even where the user has frozen the heap, and freeze again."""
        return whole_heap()

    def note(self) -> None:
        """Keep the ids of the arrays born so far: a later array at the same address is just as young."""
        if self._open and not self._view.border_lost:
            self._hidden.add(get_objects())
            bases = array_types(self.frameworks)
            if bases:
                self._noted.update(map(id, self._scan.look() if self.scanning else select_arrays(get_objects(), bases)))

    def begin_collection(self) -> None:
        """Follow the arrays born so far through a full collection."""
        if not self._open or self._view.border_lost:
            return
        bases = array_types(self.frameworks)
        if self.scanning or not bases:
            self.note()
            return
        self._collected_in_epoch = True
        self._hidden.add(get_objects())
        self._youth = KeepYoung(select_arrays(get_objects(), bases))

    def end_collection(self) -> None:
        """Make arrays that are alive young again; keep the ids of arrays that cannot be moved."""
        youth, self._youth = self._youth, None
        if youth is not None:
            self._noted |= youth.restore()
        self.moved()

    def _forget(self) -> None:
        self._noted.clear()
        self._older.clear()
        self._youth = None
        self._collected_in_epoch = False

    def moved(self) -> None:
        """Take the scan's reference again, since frozen objects have entered its view or left it."""
        if self.scanning and self._open:
            self._scan.open()

    def _keep_heap_small(self) -> None:
        """Collect what would be frozen unseen, and the whole heap when it is due.

        The number frozen since the last full collection is an upper bound, so the heap is counted before a collection.
        """
        born = len(get_objects())
        if born > gc.get_threshold()[0] and gc.isenabled():
            collect_recent()
            born = len(get_objects())
        self._frozen_since_count += born
        step = self._frozen_since_count * self._staying
        # Near its limit the heap would be counted again and again: see that it can have grown by a part of that.
        if step > self._due_at // LEAST_STEP and self._grown + step > self._due_at and gc.isenabled():
            total = get_freeze_count() + born  # walks the heap: 90 ns an object
            if self._long_lived is None:
                self._long_lived = total
            grown = max(0, total - self._long_lived)
            share = (grown - self._grown) / self._frozen_since_count
            self._staying = min(1.0, max(LEAST_STAYING, share))
            self._grown, self._frozen_since_count = grown, 0
            self._due_at = max(LEAST_FROZEN, self._long_lived // LONG_LIVED_SHARE)
            if grown > self._due_at:
                collect()

    def _collected(self) -> None:
        self._grown = self._frozen_since_count = 0
        self._long_lived = None  # counted at the next request: the collection itself was expensive enough
