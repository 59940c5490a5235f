"""How often a counter is read that takes long to read."""

from __future__ import annotations

import math
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.adapters.host.glibc import mallinfo
from pytest_gpuleak.adapters.host.throttled_reader import (
    ALWAYS_READ_BELOW_S,
    GROWN_S,
    GROWN_SHARE,
    MANY_PAGES,
    NEGLIGIBLE,
    SHARE,
    STEP_PAGES,
    WATCHFUL_S,
    WATCHFUL_SHARE,
    AddressSpace,
    ThrottledReader,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.interpreter


# As malloc's: what is shared with other processes is not counted.
PRIVATE = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}


class Process:
    """A process whose time, memory and counter a test sets."""

    def __init__(self, cost_s: float) -> None:
        self.now = 0.0
        self.space = 1000
        self.counter = 0
        self.readings = 0
        self.cost_s = cost_s
        self.room = math.inf

    def read(self) -> int:
        self.readings += 1
        self.now += self.cost_s
        return self.counter

    def reader(self, *, watchful: bool = False) -> ThrottledReader:
        reader = ThrottledReader(
            self.read, lambda: self.room, lambda: self.now, lambda: self.space, watchful=lambda: watchful
        )
        for _ in range(2):
            reader.read()
        self.readings = 0
        return reader


def test_a_cheap_counter_is_read_each_time() -> None:
    process = Process(ALWAYS_READ_BELOW_S / 2)
    reader = process.reader()
    for size in range(5):
        process.counter = size
        assert reader.read_briefly() == size
    assert process.readings == 5


def test_a_dear_counter_takes_no_more_than_its_share_of_the_time() -> None:
    process = Process(1e-3)
    reader = process.reader()
    for _ in range(1000):
        process.now += 1e-3
        reader.read_briefly()
    assert process.readings <= 1000 // 50 + 1


def test_a_dear_counter_is_read_anew_where_the_address_space_has_changed() -> None:
    process = Process(1e-3)
    reader = process.reader()
    process.counter, process.space = 20 << 20, process.space + STEP_PAGES + 1
    assert reader.read_briefly() == 20 << 20
    process.counter, process.space = 0, process.space - STEP_PAGES - 1
    assert reader.read_briefly() == 0
    process.counter = 4096
    assert reader.read_briefly() == 0
    assert reader.read() == 4096


def test_readings_for_a_changed_address_space_have_a_limit_but_for_large_changes() -> None:
    """Nearly every test of Keras's operators compiles a program of 300 KiB, and a reading takes 1.2 ms there."""
    process = Process(1e-3)
    reader = process.reader()
    tests, test_s = 2000, 0.02
    for _ in range(tests):
        process.now += test_s
        process.space += STEP_PAGES + 1
        reader.read_briefly()
    share = process.readings * process.cost_s / process.now
    assert GROWN_SHARE < share < GROWN_S / process.now + GROWN_SHARE + SHARE
    process.counter, process.space = 4 << 20, process.space + MANY_PAGES + 1
    assert (reader.read_briefly(), reader.fresh) == (4 << 20, True)
    for _ in range(2):
        process.space += STEP_PAGES + 1
        reader.read_briefly()
    assert not reader.fresh


def test_where_holes_have_no_room_a_dear_counter_is_read_rarely() -> None:
    process = Process(1e-3)
    process.room = NEGLIGIBLE - 1
    reader = process.reader()
    for _ in range(2000):
        process.now += 1e-3
        reader.read_briefly()
    assert 1 <= process.readings <= 2
    process.counter, process.space = 20 << 20, process.space + STEP_PAGES + 1
    assert reader.read_briefly() == 20 << 20


def test_room_says_nothing_where_the_address_space_is_not_told() -> None:
    process = Process(1e-3)
    process.room = process.space = 0
    reader = process.reader()
    for _ in range(1000):
        process.now += 1e-3
        reader.read_briefly()
    assert process.readings >= 4


def test_one_slow_reading_makes_no_counter_dear() -> None:
    process = Process(ALWAYS_READ_BELOW_S / 10)
    reader = process.reader()
    process.cost_s = 1.0
    reader.read()
    process.counter = 7
    assert reader.read_briefly() == 7


def test_what_is_mapped_is_seen_in_the_address_space() -> None:
    space = AddressSpace()
    before = space.pages()
    with mmap.mmap(-1, 8 << 20, **PRIVATE) as block:
        assert before == 0 or space.pages() - before >= len(block) // 65536  # pages of up to 64 KiB
    space.close()


ARENA = """
import sys, threading

from pytest_gpuleak.adapters.host.glibc import mallinfo
from pytest_gpuleak.adapters.host.glibc import mallinfo
from pytest_gpuleak.adapters.host.throttled_reader import STEP_PAGES, AddressSpace

space, heap, kept = AddressSpace(), mallinfo(), []
grow, grown = threading.Event(), threading.Event()

def work():
    kept.append(bytearray(1000))
    grown.set()
    grow.wait()
    kept.extend(bytearray(60_000) for _ in range(200))
    grown.set()

thread = threading.Thread(target=work)
thread.start()
grown.wait()
grown.clear()
before, pages = heap.read(), space.pages()
grow.set()
grown.wait()
after, moved = heap.read(), space.pages() - pages
thread.join()
print(after - before > 10_000_000, moved > STEP_PAGES, heap.free > 0)
"""


@pytest.mark.skipif(mallinfo() is None, reason="no mallinfo2 in this C library")
def test_a_threads_arena_grows_in_the_address_space_too() -> None:
    """It does so in addresses that were reserved when the thread first allocated: the size of the process stays."""
    fields = Path("/proc/self/statm").read_text().split()
    if not int(fields[5]):
        pytest.skip("this system does not tell the size of what can be written to")
    done = subprocess.run([sys.executable, "-c", ARENA], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["True", "True", "True"]


@pytest.fixture
def space() -> Iterator[AddressSpace]:
    space = AddressSpace()
    if not space.pages():
        pytest.skip("no /proc/self/statm here")
    yield space
    space.close()


def test_a_test_that_closes_every_descriptor_is_survived(space: AddressSpace) -> None:
    os.close(space._file)
    number = os.open(__file__, os.O_RDONLY)  # takes the number
    try:
        assert number == space._file
        assert space.pages() > 0
        assert os.read(number, 3) == b'"""'
        space._file = number
        space.close()
        os.fstat(number)  # not ours, and open still
    finally:
        os.close(number)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_reads_its_own(space: AddressSpace) -> None:
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        block = mmap.mmap(-1, 64 << 20, **PRIVATE)
        os.write(sender, str(space.pages()).encode())
        block.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(receiver, 100)) - space.pages() > (32 << 20) // mmap.PAGESIZE
    os.close(receiver)
    os.close(sender)


def test_where_small_growth_matters_it_is_read_each_time_for_a_while() -> None:
    process = Process(cost_s := 100e-6)
    reader = process.reader(watchful=True)
    tests = int(WATCHFUL_S / cost_s)
    for _ in range(tests):
        reader.read_briefly()
    assert process.readings == tests
    process.readings = 0
    for _ in range(100):
        process.now += cost_s / SHARE / 2
        reader.read_briefly()
    assert 30 <= process.readings <= 100


def test_where_small_growth_matters_it_is_read_after_each_slow_test() -> None:
    process = Process(cost_s := 100e-6)
    reader = process.reader(watchful=True)
    for _ in range(2000):
        process.now += cost_s / WATCHFUL_SHARE
        reader.read_briefly()
        assert reader.fresh
    assert process.readings == 2000


def test_a_saved_reading_is_told_from_a_fresh_one() -> None:
    process = Process(1e-3)
    reader = process.reader()
    assert reader.fresh
    reader.read_briefly()
    assert not reader.fresh
    reader.read()
    assert reader.fresh
    process.room = NEGLIGIBLE - 1  # malloc could not have handed out more in the same address space
    reader.read_briefly()
    assert (process.readings, reader.fresh) == (1, True)
