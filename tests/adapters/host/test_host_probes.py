"""The probes of the host: what they read, that they never raise, and that they leave the process as they found it."""

from __future__ import annotations

import gc
import re
import sys
import tracemalloc
from typing import Any

import psutil
import pytest

from pytest_gpuleak.adapters.host import heap_reader
from pytest_gpuleak.adapters.host.heap_reader import mallinfo
from pytest_gpuleak.adapters.host.modes import NAMES, host_probes
from pytest_gpuleak.adapters.host.probes import HeapProbe, ResidentSetProbe
from pytest_gpuleak.adapters.host.tracemalloc_probe import TracemallocProbe
from pytest_gpuleak.explain.large_objects import recorder_of
from pytest_gpuleak.model.readings import ProbeUnavailable

MIB = 2**20


@pytest.fixture(autouse=True)
def _as_found() -> Any:
    """Walks over the heap are kept short; tracing ends with the test."""
    assert not tracemalloc.is_tracing()
    gc.freeze()
    yield
    gc.unfreeze()
    tracemalloc.stop()


def test_probes_come_by_name_in_order_each_once() -> None:
    assert [probe.name for probe in host_probes(["rss", "heap", "rss"])] == ["rss", "heap"]
    assert [probe.name for probe in host_probes(NAMES)] == list(NAMES)
    assert [probe.name for probe in host_probes(NAMES) if not probe.judges] == ["rss"]
    assert host_probes([]) == []


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="'vram' is none of heap, tracemalloc, pympler, rss"):
        host_probes(["vram"])


def test_the_heap_is_exact() -> None:
    probe = HeapProbe()
    probe.start()
    before = probe.read()
    block = bytearray(4 * MIB)
    assert 4 * MIB <= probe.read() - before < 4 * MIB + 64 * 1024
    del block
    assert probe.read() - before < 64 * 1024
    probe.stop()
    probe.stop()


def test_a_record_of_the_heap_has_bytes_and_parts() -> None:
    probe = HeapProbe()
    probe.start()
    recorder = recorder_of(probe)
    recorder.begin_record()
    block = [bytearray(4 * MIB)]
    growth = recorder.end_record()
    probe.stop()
    assert 4 * MIB <= growth.bytes < 5 * MIB
    assert [(part.text, part.count) for part in growth.contributions] == [("bytearray", 1)]
    assert block


def test_the_c_library_and_psutil_tell_the_same() -> None:
    heap_info = mallinfo()
    if heap_info is None:
        pytest.skip("no mallinfo2 in this C library")
    for size in (100, 40 * MIB):
        block = bytearray(size)
        info = psutil.heap_info()
        assert heap_info.read() == pytest.approx(info.heap_used + info.mmap_used, abs=MIB)
        assert block


@pytest.fixture
def without_mallinfo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_reader, "mallinfo", lambda: None)


@pytest.mark.usefixtures("without_mallinfo")
def test_psutil_is_asked_elsewhere() -> None:
    probe = HeapProbe()
    probe.start()
    before = probe.read()
    block = bytearray(4 * MIB)
    assert 4 * MIB <= probe.read() - before < 5 * MIB
    assert block
    probe.stop()


@pytest.mark.usefixtures("without_mallinfo")
def test_no_heap_figure_is_a_reason_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(psutil, "heap_info")
    with pytest.raises(ProbeUnavailable, match="psutil has no heap_info on this platform"):
        HeapProbe().start()


@pytest.mark.usefixtures("without_mallinfo")
@pytest.mark.parametrize(
    ("free_threaded", "why"), [(False, "another malloc is preloaded"), (True, "free-threaded Python has its own")]
)
def test_another_malloc_is_noticed_by_a_counter_at_rest(
    monkeypatch: pytest.MonkeyPatch, free_threaded: bool, why: str
) -> None:
    info = psutil.heap_info()
    monkeypatch.setattr(psutil, "heap_info", lambda: info)
    monkeypatch.setattr(heap_reader, "is_free_threaded", lambda: free_threaded)
    with pytest.raises(ProbeUnavailable, match=re.escape(f"({why})")):
        HeapProbe().start()


@pytest.mark.usefixtures("without_mallinfo")
def test_a_failing_figure_is_a_reason_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("no")

    monkeypatch.setattr(psutil, "heap_info", fail)
    with pytest.raises(ProbeUnavailable, match=r"psutil\.heap_info failed: OSError"):
        HeapProbe().start()


def test_pympler_missing_is_a_reason_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pympler", None)
    (probe,) = host_probes(["pympler"])
    with pytest.raises(ProbeUnavailable, match="pympler is not installed"):
        probe.start()


def test_the_resident_set_is_read_and_is_evidence_alone() -> None:
    probe = ResidentSetProbe()
    probe.start()
    assert probe.read() > MIB
    assert not probe.judges
    probe.stop()
    assert probe.read() == 0


def test_tracing_starts_and_ends_with_the_probe() -> None:
    probe = TracemallocProbe()
    probe.start()
    assert tracemalloc.is_tracing()
    probe.stop()
    probe.stop()
    assert not tracemalloc.is_tracing()


def test_the_users_own_tracing_is_left_as_found() -> None:
    tracemalloc.start(7)
    probe = TracemallocProbe()
    probe.start()
    assert tracemalloc.get_traceback_limit() == 7
    probe.stop()
    assert tracemalloc.is_tracing()
    assert tracemalloc.get_traceback_limit() == 7


def test_a_line_is_named_with_its_growth() -> None:
    probe = TracemallocProbe(root="/")
    probe.start()
    probe.begin_record()
    kept = [bytearray(MIB) for _ in range(4)]
    growth = probe.end_record()
    probe.stop()
    assert 4 * MIB <= growth.bytes < 5 * MIB
    part = growth.contributions[0]
    assert part.bytes >= 4 * MIB
    assert part.created is not None
    assert part.created.file == __file__
    assert part.created.code == "kept = [bytearray(MIB) for _ in range(4)]"
    assert kept


def library_call(source: str) -> Any:
    """A function that an installed module would be."""
    namespace: dict[str, Any] = {}
    exec(compile(source, f"{sys.prefix}/lib/site-packages/library.py", "exec"), namespace)
    return namespace["make"]


def test_with_more_frames_the_users_line_is_named() -> None:
    make = library_call("def make(size):\n    return bytearray(size)\n")
    probe = TracemallocProbe(root=__file__.rpartition("/")[0], frames=5)
    probe.start()
    probe.begin_record()
    kept = make(MIB)
    (part,) = probe.end_record().contributions
    probe.stop()
    assert part.created is not None
    assert part.created.code == "kept = make(MIB)"
    assert kept


@pytest.mark.parametrize("ours", [True, False])
def test_a_test_that_stops_the_tracing_breaks_nothing(ours: bool) -> None:
    if not ours:
        tracemalloc.start()
    probe = TracemallocProbe()
    probe.start()
    probe.begin_record()
    tracemalloc.stop()
    assert probe.end_record().bytes == 0
    probe.begin_record()
    tracemalloc.stop()
    assert probe.read() == 0
    assert tracemalloc.is_tracing() is ours
    probe.stop()
    assert not tracemalloc.is_tracing()


def test_a_test_that_clears_the_traces_makes_no_growth() -> None:
    probe = TracemallocProbe()
    probe.start()
    kept = [bytearray(MIB)]
    probe.begin_record()
    tracemalloc.clear_traces()
    growth = probe.end_record()
    probe.stop()
    assert growth.bytes <= 0
    assert growth.contributions == ()
    assert kept
