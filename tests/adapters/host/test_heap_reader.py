"""When malloc's count is read again, and when its last reading is returned."""

from __future__ import annotations

import gc
import math
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.adapters.host.heap_reader import FEW_CHUNKS, AddressSpace, BoundedReader, mallinfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.interpreter

MIB = 2**20

# As malloc's: what is shared with other processes is not counted.
PRIVATE = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}


class Process:
    """A process whose heap and address space a test sets."""

    def __init__(self) -> None:
        self.size = self.readings = 0
        self.space = 1000
        self.free: float = 0.0
        self.chunks = FEW_CHUNKS + 1

    def read(self) -> int:
        self.readings += 1
        return self.size

    def reader(self) -> BoundedReader:
        reader = BoundedReader(self, lambda: self.space)
        reader.read()
        self.readings = 0
        return reader


def least(size: int) -> Callable[[], int]:
    return lambda: size


def never() -> int:
    raise AssertionError("asked")


def test_a_heap_of_few_chunks_is_read_each_time() -> None:
    process = Process()
    process.chunks = FEW_CHUNKS
    reader = process.reader()
    for size in range(5):
        process.size = size
        assert reader.read_briefly(never) == size
    assert process.readings == 5


@pytest.mark.parametrize("pages", [-16, 0, 16])
@pytest.mark.parametrize("free", [0, 3 * MIB])
def test_a_reading_is_left_out_exactly_where_the_heap_cannot_have_grown_by_what_matters(pages: int, free: int) -> None:
    process = Process()
    process.free = free
    reader = process.reader()
    process.size, process.space = 7, process.space + pages
    most = free + abs(pages) * mmap.PAGESIZE
    assert (reader.read_briefly(least(most + 1)), process.readings) == (0, 0)
    assert (reader.read_briefly(least(most)), process.readings) == (7, 1)


def test_growth_is_bounded_from_the_last_reading_on_not_from_test_to_test() -> None:
    """Many tests that grow a little each must not hide what they have added together."""
    process = Process()
    reader = process.reader()
    step = MIB // mmap.PAGESIZE
    for _ in range(9):
        process.size, process.space = process.size + MIB, process.space + step
        assert reader.read_briefly(least(10 * MIB)) == 0
    process.size, process.space = process.size + MIB, process.space + step
    assert reader.read_briefly(least(10 * MIB)) == 10 * MIB
    assert process.readings == 1


def test_how_often_it_is_read_does_not_depend_on_how_often_it_is_asked() -> None:
    process = Process()
    reader = process.reader()
    for _ in range(10_000):
        reader.read_briefly(least(MIB))
    assert process.readings == 0


@pytest.mark.parametrize("then", [0, 1000])
def test_where_the_address_space_is_not_told_it_is_read_each_time(then: int) -> None:
    process = Process()
    process.space = then
    reader = process.reader()
    process.size, process.space = 7, 0
    assert reader.read_briefly(least(MIB)) == 7


def test_where_malloc_does_not_tell_what_it_has_free_it_is_read_each_time() -> None:
    process = Process()
    process.free = math.inf
    reader = process.reader()
    process.size = 7
    assert reader.read_briefly(least(MIB)) == 7


GROWN = """
from pytest_gpuleak.adapters.host.heap_reader import FEW_CHUNKS, BoundedReader, heap_reader

MIB = 2**20
heap = heap_reader()
holes = [bytearray(1100 + 16 * (number % 20)) for number in range(4 * FEW_CHUNKS)]
del holes[::2]
reader = BoundedReader(heap)
before = reader.read()
print(heap.chunks > FEW_CHUNKS)
print(reader.read_briefly(lambda: 64 * MIB) == before)
kept = [bytearray(60_000) for _ in range(200)]  # of new pages, or of what was free
print(reader.read_briefly(lambda: 10 * MIB) - before > 10 * MIB)
before = reader.read()
kept += [bytearray(1000) for _ in range(int(heap.free) // 1000 + 1000)]  # fills what is free
print(reader.read_briefly(lambda: MIB) - before > MIB // 2)
"""


@pytest.mark.skipif(mallinfo() is None, reason="no mallinfo2 in this C library")
@pytest.mark.skipif(sys.platform != "linux", reason="no /proc/self/statm here")
def test_growth_by_what_matters_is_always_read() -> None:
    # In a process of its own: what other tests have left on the heap is room for more.
    done = subprocess.run([sys.executable, "-c", GROWN], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["True", "True", "True", "True"]


@pytest.mark.skipif(mallinfo() is None, reason="no mallinfo2 in this C library")
def test_a_reading_keeps_nothing_that_the_collector_tracks() -> None:
    """It would be an object more that each test leaves, of a type that has to be looked at."""
    heap = mallinfo()
    assert heap is not None
    heap.read()
    assert not [name for name, value in vars(heap).items() if name != "_ask" and gc.is_tracked(value)]


def test_what_is_mapped_is_seen_in_the_address_space() -> None:
    space = AddressSpace()
    before = space.pages()
    with mmap.mmap(-1, 8 << 20, **PRIVATE) as block:
        assert before == 0 or space.pages() - before >= len(block) // 65536  # pages of up to 64 KiB
    space.close()


ARENA = """
import sys, threading

from mmap import PAGESIZE

from pytest_gpuleak.adapters.host.heap_reader import mallinfo
from pytest_gpuleak.adapters.host.heap_reader import AddressSpace

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
print(after - before > 10_000_000, moved * PAGESIZE > 5_000_000, heap.free > 0)
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
    number = space._file
    other = os.open(__file__, os.O_RDONLY)
    os.dup2(other, number)  # takes the number
    os.close(other)
    try:
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
