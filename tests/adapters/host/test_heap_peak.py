"""The peak of what Python, and frameworks beside it, have on the host."""

from __future__ import annotations

import threading
import tracemalloc

import pytest

from pytest_gpuleak.adapters.host.heap_peak import HeapPeak, LinesAtPeak

MIB = 1 << 20
SLACK = 64 << 10


def is_here(file: str) -> bool:
    return file == __file__


def peak_of(heap: HeapPeak) -> float:
    """MiB, to a sixteenth."""
    return round(heap.grown / MIB * 16) / 16


def test_it_is_the_most_at_one_moment() -> None:
    with HeapPeak(), HeapPeak():
        pass  # one within another's tracing changes nothing
    heap = HeapPeak()
    with heap:
        for _ in range(3):
            bytearray(2 * MIB)
        kept = [bytearray(MIB)]
        thread = threading.Thread(target=lambda: bytearray(3 * MIB))
        thread.start()
        thread.join()
    assert kept
    assert peak_of(heap) == 4
    assert not tracemalloc.is_tracing()


def test_blocks_of_others_are_counted_with_them() -> None:
    heap = HeapPeak()
    with heap:
        heap.add(1, 2 * MIB)
        heap.add(1, 5 * MIB)  # resized
        kept = bytearray(MIB)
        heap.remove(1)
        heap.remove(1)
        heap.add(2, 3 * MIB)
    assert kept
    assert peak_of(heap) == 6


def test_a_pause_is_left_out_and_was_there_before() -> None:
    heap = HeapPeak()
    with heap:
        kept = [bytearray(MIB)]
        heap.pause()
        bytearray(8 * MIB)
        kept.append(bytearray(4 * MIB))
        heap.pause()
        heap.resume()
        kept.append(bytearray(MIB))
    assert peak_of(heap) == 2


def test_tracing_that_was_on_stays_on_and_counts_from_there() -> None:
    tracemalloc.start(3)
    try:
        before = bytearray(4 * MIB)
        bytearray(9 * MIB)
        heap = HeapPeak()
        with heap:
            bytearray(2 * MIB)
        assert before
        assert peak_of(heap) == 2
        assert (tracemalloc.is_tracing(), tracemalloc.get_traceback_limit()) == (True, 3)
    finally:
        tracemalloc.stop()


def test_restarted_peaks_are_not_lost() -> None:
    heap, reset = HeapPeak(), tracemalloc.reset_peak
    with heap:
        bytearray(3 * MIB)
        tracemalloc.reset_peak()
    assert peak_of(heap) == 3
    assert tracemalloc.reset_peak is reset


@pytest.mark.parametrize("end", [tracemalloc.stop, tracemalloc.clear_traces])
def test_a_run_that_ends_or_clears_the_tracing_is_not_measured(end: object) -> None:
    heap = HeapPeak()
    with heap:
        assert callable(end)
        end()
    assert heap.why_not == "the test stops or clears tracemalloc, which measures it"
    tracemalloc.stop()


def fill(kept: list[bytearray]) -> None:
    kept.append(bytearray(4 * MIB))


def work(heap: HeapPeak, kept: list[bytearray]) -> None:
    kept.append(bytearray(2 * MIB))
    heap.pause()
    kept.append(bytearray(2 * MIB))
    heap.resume()
    fill(kept)
    kept.append(bytearray(MIB) + bytearray(3 * MIB))  # 8 MiB while it runs
    kept.clear()
    kept.append(bytearray(5 * MIB))


def test_the_lines_add_up_to_the_peak() -> None:
    measured = HeapPeak()
    with measured:
        work(measured, [])
    assert peak_of(measured) == 14
    heap = HeapPeak(LinesAtPeak(measured.grown, is_here))
    with heap:
        work(heap, [])
    peak = heap.peak("cpu")
    first = work.__code__.co_firstlineno
    assert peak.bytes == measured.grown
    assert peak.lacks == ()
    assert peak.moment is not None
    assert (peak.moment.line, peak.moment.function) == (first + 6, "work")
    parts = [(part.category, part.created and part.created.line, round(part.bytes / MIB)) for part in peak.parts]
    assert sorted(parts) == [
        ("held", fill.__code__.co_firstlineno + 1, 4),
        ("held", first + 1, 2),
        ("held", first + 6, 4),
        ("temporary", first + 6, 4),
    ]
    assert abs(sum(part.bytes for part in peak.parts) + peak.unexplained_bytes - peak.bytes) < SLACK


def test_a_peak_that_is_not_reached_again_has_no_lines() -> None:
    heap = HeapPeak(LinesAtPeak(8 * MIB, is_here))
    with heap:
        bytearray(MIB)
    assert heap.peak("cpu").lacks == ("the run that tells lines stayed below the peak",)


def test_lines_that_have_taken_more_than_was_expected_are_the_peak() -> None:
    heap = HeapPeak(LinesAtPeak(2 * MIB, is_here))
    with heap:
        kept = [bytearray(2 * MIB), bytearray(MIB)]
    assert kept
    peak = heap.peak("cpu")
    assert peak.bytes >= 3 * MIB
    assert sum(part.bytes for part in peak.parts) + peak.unexplained_bytes == peak.bytes
