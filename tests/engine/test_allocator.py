"""The arithmetic of CUDA's caching allocator."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuleak.engine.peaks import CachingAllocator, PeakBytes, peak_of, rounded
from pytest_gpuleak.model.text import MIB

BIG = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
SIZES = st.one_of(st.integers(1, 3 * MIB), st.integers(1, 64 * MIB), st.sampled_from([512, MIB, MIB + 1, 10 * MIB]))
STEPS = st.lists(st.tuples(SIZES, st.integers(0, 1 << 16)), max_size=200)
"""Sizes to allocate, each with a number that chooses what is released first: of even ones nothing is."""


def run(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The blocks of steps, with their ends, by number."""
    blocks: list[tuple[int, int]] = []
    alive: list[int] = []
    for number, (size, choice) in enumerate(steps):
        if alive and choice % 2:
            blocks.append((alive.pop(choice % len(alive)), 0))
        blocks.append((number, size))
        alive.append(number)
    return blocks


@pytest.mark.parametrize(
    ("size", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # the rest is no more than 1 MiB: not split off
        (21 * MIB + 1, 22 * MIB, 22 * MIB),
    ],
)
def test_one_block_and_its_segment(size: int, block: int, segment: int) -> None:
    assert peak_of([(0, size)]) == PeakBytes(block, segment)


def test_of_two_free_blocks_the_smaller_that_fits_is_used() -> None:
    allocator = CachingAllocator()
    first, second = (allocator.allocate(size * MIB) for size in (8, 2))
    allocator.release(first)  # free: 8 MiB, and the 10 MiB left of the segment
    assert allocator.allocate(5 * MIB) == first
    assert allocator.allocate(9 * MIB) > second
    assert allocator.reserved == 20 * MIB


def test_released_neighbours_become_one_block() -> None:
    allocator = CachingAllocator()
    parts = [allocator.allocate(4 * MIB) for _ in range(5)]
    for part in (parts[1], parts[3], parts[2], parts[0], parts[4]):
        allocator.release(part)
    allocator.allocate(18 * MIB)
    assert (allocator.allocated, allocator.reserved) == (18 * MIB, 20 * MIB)


def test_what_ends_without_a_beginning_and_no_bytes_take_nothing() -> None:
    assert peak_of([(1, 0), (2, 0)]) == PeakBytes()


@BIG
@given(STEPS)
def test_sums_and_order(steps: list[tuple[int, int]]) -> None:
    allocator = CachingAllocator()
    held: dict[int, tuple[int, int]] = {}
    asked = most = 0
    for number, size in run(steps):
        if size:
            before = allocator.allocated
            address = allocator.allocate(size)
            taken = allocator.allocated - before
            assert rounded(size) <= taken <= rounded(size) + MIB
            held[number] = (address, taken)
            asked += size
            most = max(most, asked)
        else:
            address, taken = held.pop(number)
            asked -= steps[number][0]
            allocator.release(address)
        ordered = sorted(held.values())
        assert all(first + size <= second for (first, size), (second, _) in pairwise(ordered))
        assert asked <= allocator.allocated == sum(taken for _, taken in ordered) <= allocator.reserved
    assert most <= allocator.peak.allocated <= allocator.peak.reserved == allocator.reserved
    for address, _ in list(held.values()):
        allocator.release(address)
    reserved = allocator.reserved
    if steps:
        allocator.allocate(max(size for size, _ in steps))  # each segment is one free block again
    assert allocator.reserved == reserved
