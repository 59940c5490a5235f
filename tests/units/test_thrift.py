"""How often a counter is read that takes long to read."""

from __future__ import annotations

import mmap

from pytest_gpuleak.probes.thrift import DEAR_S, STEP_PAGES, ThriftyReader, count_pages


class Process:
    """A process whose time, memory and counter a test sets."""

    def __init__(self, cost_s: float) -> None:
        self.now = 0.0
        self.space = 1000
        self.counter = 0
        self.readings = 0
        self.cost_s = cost_s

    def read(self) -> int:
        self.readings += 1
        self.now += self.cost_s
        return self.counter

    def reader(self) -> ThriftyReader:
        reader = ThriftyReader(self.read, lambda: self.now, lambda: self.space)
        for _ in range(2):
            reader.read()
        self.readings = 0
        return reader


def test_a_cheap_counter_is_read_each_time() -> None:
    process = Process(DEAR_S / 2)
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


def test_one_slow_reading_makes_no_counter_dear() -> None:
    process = Process(DEAR_S / 10)
    reader = process.reader()
    process.cost_s = 1.0
    reader.read()
    process.counter = 7
    assert reader.read_briefly() == 7


def test_what_is_mapped_is_seen_in_the_address_space() -> None:
    before = count_pages()
    with mmap.mmap(-1, 8 << 20) as block:
        assert before == 0 or count_pages() - before >= len(block) // 65536  # pages of up to 64 KiB
