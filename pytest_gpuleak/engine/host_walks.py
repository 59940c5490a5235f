"""What walks over the heap tell of arrays: which explain by their sizes what a run has added, and which lines made them."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.creation_lines import code_at
from pytest_gpuleak.engine.limits import (
    LEAST_ASKED,
    LEAST_EXPLAINED,
    LEAST_PYTHON_OBJECT,
    MOST_ASKED,
    REST_SHARE,
    SLACK_SHARE,
    SMALL_SHARE,
    TRACED_FRAMES,
)
from pytest_gpuleak.heap.collector import PausedCollector
from pytest_gpuleak.heap.tracing import CAN_TRACE, is_tracing
from pytest_gpuleak.model.source_files import Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pytest_gpuleak.adapters.untracked import MetArrays
    from pytest_gpuleak.explain.untracked_arrays import HeapArrays


class HeapSince:
    """Follow the heap of a suspect since its first run: what re-runs add to it, and what collections between runs free.

    What the plugin adds between the runs is left out so: modules of its own, and walks.
    """

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._running = False
        self._at_start = 0
        self.added = 0
        """Bytes added, less what was freed."""

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        """Count all that happens in a re-run."""
        before, self._running = self._read(), True
        try:
            yield
        finally:
            self._running = False
            self.added += self._read() - before

    def on_collection(self, phase: str, _info: object) -> None:
        """Count what a collection between two runs frees (an entry of `gc.callbacks`)."""
        if phase == "start":
            self._at_start = self._read()
        elif not self._running:
            self.added -= self._at_start - self._read()


@dataclasses.dataclass(frozen=True)
class Residue:
    """What a run has added.

    Attributes:
        grown: bytes by which it grew the heap, of which programs have taken `compiled`.
        known: sizes of arrays that are older, by the key of their memory.
        born: keys of memory that certainly is the run's.
    """

    grown: int
    compiled: int
    known: Mapping[int, int]
    born: Collection[int]

    def choose(self, heap: HeapArrays) -> tuple[list[object], MetArrays | None]:
        """Return the arrays that explain the growth, and the walk to all (see `HeapArrays.walk`). The whole heap must be visible."""
        room = self.grown + self.grown // SLACK_SHARE
        least = max(room // SMALL_SHARE, 1)
        with PausedCollector():
            arrays, now = heap.find(lambda key, size: least <= size <= room and self._is_new(key, size))
            return self._of_size(arrays, heap, room), now

    def new_bytes(self, sizes: Mapping[int, int]) -> int:
        """Return how many bytes the run may have left, of arrays of these `sizes`, garbage among them."""
        return sum(size for key, size in sizes.items() if self._is_new(key, size))

    def _is_new(self, key: int, size: int) -> bool:
        return key in self.born or self.known.get(key) != size

    def _of_size(self, arrays: Sequence[object], heap: HeapArrays, room: int) -> list[object]:
        """Return the arrays that together explain the growth; none if they explain too little of it."""
        sizes = {id(array): one for array in arrays if (one := heap.read(array)) is not None}
        by_storage = {one.storage: one.storage_bytes for one in sizes.values()}
        order = sorted(by_storage.items(), key=lambda one: (one[0] not in self.born, -one[1]))
        taken: set[int] = set()
        left = room
        for key, size in order:
            if room - left >= self.grown - self.grown // REST_SHARE:
                break  # what is left of the growth is small: other arrays of that size are others'
            if size <= left:
                left -= size
                taken.add(key)
        if room - left < (self.grown - self.compiled) * LEAST_EXPLAINED:
            return []
        return [array for array in arrays if id(array) in sizes and sizes[id(array)].storage in taken]


class TracedLines:
    """The user's lines that create a run's arrays. Tracing that the user began is used and goes on."""

    def __init__(self, is_user_file: Callable[[str], bool]) -> None:
        self._is_user_file = is_user_file
        self._known: dict[str, bool] = {}
        """Whether a file is the user's: to ask takes a hundred times as long while each string made is traced."""
        self.tracing = False
        """Whether the tracing is the plugin's own."""

    def start(self) -> None:
        """Trace from now on, unless something traces already, or the interpreter cannot."""
        if is_tracing() or not CAN_TRACE:
            return
        import tracemalloc

        try:
            tracemalloc.start(TRACED_FRAMES)
        except (RuntimeError, MemoryError):
            return  # the line is not told
        self.tracing = True

    def stop(self) -> None:
        """Stop tracing that the plugin has started. Safe to call twice."""
        if self.tracing:
            import tracemalloc

            self.tracing = False
            tracemalloc.stop()

    def of_new(self, heap: HeapArrays, before: Mapping[int, int]) -> dict[int, Origin]:
        """Return the lines of the arrays that are not among those `before`, by the key of their memory."""
        if not self._knows_any():
            return {}
        arrays = heap.plain(lambda key, size: size >= LEAST_ASKED and before.get(key) != size)
        del arrays[MOST_ASKED:]
        places = dict(zip(heap.keys_of(arrays), map(self._place, map(heap.reader.allocated, arrays)), strict=True))
        arrays.clear()
        origins = {place: Origin(*place, "", code_at(*place)) for place in set(places.values()) if place is not None}
        return {key: origins[place] for key, place in places.items() if place is not None}

    def _knows_any(self) -> bool:
        """Tell whether memory that an array may use was allocated in the run and lives: lines are looked for in a walk.

        NumPy's own memory is in a domain of its own (numpy/_core/src/multiarray/alloc.c).
        """
        if not self.tracing:
            return is_tracing()
        from _tracemalloc import _get_traces  # not tracemalloc.take_snapshot(), which takes 7 s for a million blocks

        # Each begins with its domain and size (Modules/_tracemalloc.c).
        return any(trace[1] >= (LEAST_ASKED if trace[0] else LEAST_PYTHON_OBJECT) for trace in _get_traces())

    def _place(self, value: object) -> tuple[str, int] | None:
        """Return the user's innermost file and line at which an object was allocated; None where it was not traced."""
        import tracemalloc

        for frame in reversed(tracemalloc.get_object_traceback(value) or ()):  # the innermost frame comes last
            if frame.filename not in self._known:
                self._known[frame.filename] = self._is_user_file(frame.filename)
            if self._known[frame.filename]:
                return frame.filename, frame.lineno
        return None
