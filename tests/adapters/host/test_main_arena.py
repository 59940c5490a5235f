"""Whether the main thread's part of malloc's heap can have grown."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from mmap import PAGESIZE
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.adapters.host.glibc import mallinfo
from pytest_gpuleak.adapters.host.main_arena import (
    ASKING_SHARE,
    BLOCK,
    MOST_BELOW_TOP,
    MOST_PATIENCE,
    NOTICED,
    READINGS_PER_ASKING,
    MainArena,
    parse_main_arena,
)
from pytest_gpuleak.adapters.host.malloc_fields import MallocFields
from pytest_gpuleak.adapters.host.throttled_reader import (
    ALWAYS_READ_BELOW_S,
    MOVED_S,
    STEP_PAGES,
    UNCHANGED_S,
    WATCHFUL_S,
    WATCHFUL_SHARE,
    ThrottledReader,
)
from pytest_gpuleak.heap.collector_rules import is_free_threaded

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.interpreter

READING_S = 50e-6


class Fields(MallocFields):
    """Fields of malloc that a test sets."""

    def __init__(self) -> None:
        self.begin = 1 << 41
        self.maps = 0

    def top(self) -> int:
        return self.begin

    def elsewhere(self) -> int:
        return self.maps

    def obtained(self) -> int:
        return self.begin + self.maps


class Heap:
    """A heap whose layout a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.top = 1 << 40
        self.free: tuple[int, int] | None = (10_000, 500)
        self.space = 1000
        self.asked = 0
        self.found: Fields | None = None
        self.arena = MainArena(self, lambda: self.now)
        self.wait()

    def wait(self) -> None:
        self.now += MOST_PATIENCE * READING_S * READINGS_PER_ASKING / ASKING_SHARE

    def place(self) -> int:
        return self.top

    def fields(self) -> Fields | None:
        return self.found

    def below_top(self) -> tuple[int, int] | None:
        self.asked += 1
        return self.free

    def note(self, counter: int = 0) -> None:
        self.arena.note(counter, READING_S, lambda: self.space)

    def is_still(self) -> bool:
        return self.arena.is_still(lambda: self.space)

    def reader(
        self, cost_s: float, room: float = 0.0, arrays: Callable[[], list[int]] = list
    ) -> tuple[ThrottledReader, list[float]]:
        """Return a watchful reader whose readings say 7 and take `cost_s` each, and the times of its readings."""
        readings: list[float] = []

        def read() -> int:
            self.now += cost_s
            readings.append(self.now)
            return 7

        clock, pages = lambda: self.now, lambda: self.space
        return ThrottledReader(read, lambda: room, clock, pages, lambda: True, arrays, self.arena), readings


def test_nothing_is_known_before_the_first_note() -> None:
    assert not Heap().is_still()


@pytest.mark.parametrize("direction", [1, -1])
def test_what_moves_the_top_or_the_address_space_is_noticed(direction: int) -> None:
    heap = Heap()
    heap.note()
    assert heap.is_still()
    heap.top += direction * (NOTICED - 10_000 - 1)
    assert heap.is_still()
    heap.top += direction
    assert not heap.is_still()
    heap.wait()
    heap.note()
    assert heap.is_still()
    heap.space += direction * (NOTICED // PAGESIZE)
    assert not heap.is_still()


def test_what_has_moved_adds_up() -> None:
    heap = Heap()
    heap.note()
    heap.top += NOTICED // 3
    heap.space += NOTICED // 3 // PAGESIZE
    assert heap.is_still()
    heap.note(NOTICED // 3)
    assert not heap.is_still()


def test_nothing_is_still_again_before_it_is_noted_anew() -> None:
    heap = Heap()
    heap.note()
    heap.top += NOTICED
    assert not heap.is_still()
    heap.top -= NOTICED
    assert not heap.is_still()


@pytest.mark.parametrize("free", [(MOST_BELOW_TOP + 1, 500), (BLOCK, BLOCK), None])
def test_where_blocks_fit_below_the_top_nothing_is_known(free: tuple[int, int] | None) -> None:
    heap = Heap()
    heap.free = free
    heap.note()
    assert not heap.is_still()


def test_without_an_address_space_nothing_is_known() -> None:
    heap = Heap()
    heap.space = 0
    heap.note()
    assert not heap.is_still()


@pytest.mark.parametrize("direction", [1, -1])
def test_the_fields_of_malloc_tell_without_a_call(direction: int) -> None:
    heap = Heap()
    heap.found, heap.space = Fields(), 0
    heap.note()
    heap.top += NOTICED  # malloc would place a block elsewhere: nobody asks
    assert heap.is_still()
    heap.found.begin += direction * NOTICED
    assert not heap.is_still()
    heap.wait()
    heap.note()
    assert heap.is_still()
    heap.found.maps += direction * NOTICED
    assert not heap.is_still()


def test_one_hole_is_watched_by_what_malloc_would_place_there() -> None:
    heap = Heap()
    heap.found, heap.free = Fields(), (MOST_BELOW_TOP + 2_000_000, 2_000_000)
    heap.note()
    assert heap.is_still()
    heap.top += NOTICED - MOST_BELOW_TOP
    assert not heap.is_still()
    heap.wait()
    heap.free = (MOST_BELOW_TOP + 1 + 2_000_000, 2_000_000)
    heap.note()
    assert not heap.is_still()


def test_what_malloc_has_obtained_takes_the_place_of_the_address_space() -> None:
    heap = Heap()
    heap.free = (18_000_000, 700)
    heap.found = Fields()
    heap.note()
    reader, readings = heap.reader(WATCHFUL_S / 4, room=18e6)
    for _ in range(20):
        reader.read_briefly()
    readings.clear()
    heap.space += 1000 * STEP_PAGES
    reader.read_briefly()
    assert not readings
    heap.found.maps += (STEP_PAGES + 1) * PAGESIZE
    reader.read_briefly()
    assert len(readings) == 1


def test_free_chunks_are_asked_for_rarely() -> None:
    heap = Heap()
    pause = READING_S * READINGS_PER_ASKING / ASKING_SHARE
    heap.note()
    heap.note(NOTICED)
    heap.now += pause / 2
    heap.note(2 * NOTICED)
    assert (heap.asked, heap.is_still()) == (1, False)
    heap.now += pause
    heap.note(3 * NOTICED)
    assert (heap.asked, heap.is_still()) == (2, True)
    heap.note(3 * NOTICED + 1)  # a small change needs no question
    assert (heap.asked, heap.is_still()) == (2, True)


def test_free_chunks_are_asked_for_ever_less_often_where_blocks_fit() -> None:
    heap = Heap()
    heap.free = (NOTICED, NOTICED)
    for _ in range(1000):
        heap.now += READING_S * READINGS_PER_ASKING / ASKING_SHARE * 1.01
        heap.note()
    assert heap.asked <= 1000 / MOST_PATIENCE + 10


def test_threads_have_arenas_of_their_own() -> None:
    heap = Heap()
    found = []

    def look() -> None:
        heap.note()
        found.append(heap.is_still())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert (found, heap.asked) == ([False], 0)
    heap.note()
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert not heap.is_still()
    end.set()
    thread.join()


def test_a_still_heap_is_not_read_before_its_share_of_the_time() -> None:
    heap = Heap()
    reader, readings = heap.reader(READING_S)
    assert READING_S > ALWAYS_READ_BELOW_S
    for _ in range(2):
        reader.read()
        heap.wait()
    reader.read()
    readings.clear()
    for _ in range(100):
        assert (reader.read_briefly(), reader.fresh) == (7, True)
    assert not readings
    heap.top += NOTICED
    reader.read_briefly()
    assert len(readings) == 1
    heap.now += READING_S / WATCHFUL_SHARE * 1.01
    reader.read_briefly()
    assert len(readings) == 2


def test_a_new_array_is_worth_more_readings() -> None:
    heap = Heap()
    heap.free = None
    arrays = [5]
    reader, readings = heap.reader(cost_s := 20e-6, room=18e6, arrays=lambda: list(arrays))
    for _ in range(2 * int(UNCHANGED_S / cost_s)):
        reader.read_briefly()
    # A thousandth is added of the time that the readings themselves take here.
    assert UNCHANGED_S / cost_s <= len(readings) <= 1.05 * UNCHANGED_S / cost_s + 4
    readings.clear()
    reader.read_briefly()
    assert not readings
    arrays[0] += 1
    reader.read_briefly()
    assert len(readings) == 1
    reader.read_briefly()
    assert len(readings) == 1


def test_a_moved_top_is_noticed_whatever_is_free_below_it() -> None:
    heap = Heap()
    heap.free = (18_000_000, 700)
    heap.arena.mark_top()
    heap.note()
    assert not heap.is_still()
    assert not heap.arena.top_has_moved()
    heap.top += NOTICED
    assert heap.arena.top_has_moved()
    heap.arena.mark_top()
    assert not heap.arena.top_has_moved()


def test_another_thread_takes_from_another_arena() -> None:
    heap = Heap()
    heap.arena.mark_top()
    heap.top += NOTICED
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(heap.arena.top_has_moved()))
    thread.start()
    thread.join()
    assert seen == [False]


def test_a_moved_top_is_read_after_though_the_time_for_readings_is_spent() -> None:
    """An array in the room that a larger one has left at the top moves no page."""
    heap = Heap()
    heap.free = (18_000_000, 700)
    cost_s = WATCHFUL_S / 4
    reader, readings = heap.reader(cost_s, room=18e6)
    for _ in range(10):
        reader.read_briefly()
    readings.clear()
    reader.read_briefly()
    assert not readings
    heap.top += NOTICED
    assert (reader.read_briefly(), len(readings), reader.fresh) == (7, 1, True)
    reader.read_briefly()
    assert len(readings) == 1
    for _ in range(100):
        heap.top += NOTICED
        reader.read_briefly()
    # Such readings have a limit of their own.
    assert len(readings) * cost_s < 2 * (MOVED_S + WATCHFUL_SHARE * heap.now) + cost_s


INFO = b"""<malloc version="1">
<heap nr="0">
<sizes>
  <size from="49" to="49" total="735" count="15"/>
  <size from="1041" to="2081" total="3122" count="2"/>
</sizes>
<total type="fast" count="3" size="192"/>
<total type="rest" count="18" size="103857"/>
<system type="current" size="135168"/>
</heap>
<heap nr="1">
<sizes>
  <size from="400001" to="400001" total="400001" count="1"/>
</sizes>
<total type="fast" count="0" size="0"/>
<total type="rest" count="2" size="500000"/>
</heap>
</malloc>
"""


def test_the_first_heap_is_the_main_arena() -> None:
    assert parse_main_arena(INFO, 100_000) == (4049, 2081)
    assert parse_main_arena(INFO, 200_000) == (0, 2081)


@pytest.mark.parametrize("text", [b"", b"\0" * 100, INFO[:100], b"<heap nr='0'></heap>"])
def test_another_text_tells_nothing(text: bytes) -> None:
    assert parse_main_arena(text, 0) is None


REAL = """
import threading

from pytest_gpuleak.adapters.host.glibc import mallinfo
from pytest_gpuleak.adapters.host.main_arena import NOTICED, GlibcLayout, MainArena
from pytest_gpuleak.adapters.host.throttled_reader import AddressSpace

def leave_holes():
    kept = [bytearray(600 + 16 * (number % 20)) for number in range(20_000)]
    del kept[::2]
    OF_THREAD.append(kept)

OF_THREAD, space, heap, kept = [], AddressSpace(), mallinfo(), []
thread = threading.Thread(target=leave_holes)
thread.start()
thread.join()
heap.read()
layout = GlibcLayout(heap)
layout.fields()  # loading the module that searches for them leaves holes
arena = MainArena(layout)
# Fill what is free below the top.
while (layout.below_top() or (0,))[0] > 100_000:
    kept.append(bytearray(3000))
    heap.read()

def is_still(leave):
    arena._asked_at = -1.0
    arena._known = False
    arena.note(heap.read(), 1e-9, space.pages)
    first = arena.is_still(space.pages)
    leave()
    return first, arena.is_still(space.pages)

print(heap.free > 4_000_000)
print(is_still(lambda: None))
print(is_still(lambda: bytearray(10_000_000)))
print(is_still(lambda: kept.append([bytearray(1000) for _ in range(NOTICED // 1000)])))
print(is_still(lambda: kept.append(bytearray(1_000_000))))
"""


MAPPED = """
from pytest_gpuleak.adapters.host import main_arena
from pytest_gpuleak.adapters.host.glibc import mallinfo

heap = mallinfo()
heap.read()
layout = main_arena.GlibcLayout(heap)
print(layout.below_top() is None)
main_arena.BLOCK = 1 << 26  # mapped, whatever the threshold has come to be
print(layout.below_top() is None)
"""


@pytest.mark.skipif(mallinfo() is None, reason="no mallinfo2 in this C library")
@pytest.mark.skipif(sys.platform != "linux", reason="no /proc/self/statm here")
@pytest.mark.skipif(is_free_threaded(), reason="this interpreter has a heap of its own")
def test_growth_is_noticed_beside_another_threads_holes() -> None:
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["True", "(True, True)", "(True, True)", "(True, False)", "(True, False)"]


@pytest.mark.skipif(mallinfo() is None, reason="no mallinfo2 in this C library")
def test_blocks_that_malloc_maps_tell_nothing() -> None:
    # In a process of its own: what other tests have left on the heap can make it unknown as well.
    done = subprocess.run([sys.executable, "-c", MAPPED], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["False", "True"]


@pytest.mark.skipif(mallinfo() is None, reason="no mallinfo2 in this C library")
def test_a_reading_keeps_nothing_that_the_collector_tracks() -> None:
    """It would be an object more that each test leaves, of a type that has to be looked at."""
    heap = mallinfo()
    assert heap is not None
    heap.read()
    assert not [name for name, value in vars(heap).items() if name != "ask" and gc.is_tracked(value)]
