"""Counters read around a test, with probes that say what they are told to."""

from __future__ import annotations

import gc
import sys
import types
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.adapters.probe_protocol import DeviceProbe, DeviceReading, HostGrowth, HostProbe
from pytest_gpuleak.engine.detect.counters import CounterWatch
from pytest_gpuleak.engine.detect.heap_scan import ScanDetector
from pytest_gpuleak.engine.limits import MODULE_BYTES
from pytest_gpuleak.model.outcomes import FixturePlace
from pytest_gpuleak.model.policy import Policy
from pytest_gpuleak.model.readings import HOST, ProbeUnavailable
from pytest_gpuleak.model.records import TestRecord
from pytest_gpuleak.model.summary import describe_usage

if TYPE_CHECKING:
    from collections.abc import Callable


PLACE = FixturePlace("model", "module", "tests/test_it.py", None, None)


class Devices(DeviceProbe):
    """Devices whose counters a test sets."""

    name = "fake devices"
    idle = False
    absent: dict[str, str] = {}  # noqa: RUF012 - never written to

    def __init__(self) -> None:
        self.readings: dict[str, DeviceReading] = {}
        self.error: Exception | None = None
        self.in_use: dict[str, int | Exception] = {}

    def read(self) -> dict[str, DeviceReading]:
        if self.error is not None:
            raise self.error
        return dict(self.readings)

    def used(self, device: str) -> int | None:
        found = self.in_use.get(device)
        if isinstance(found, Exception):
            raise found
        return found

    def begin_peaks(self) -> None:
        pass

    def stop(self) -> None:
        pass


class Heap(HostProbe):
    """A host's counter that a test sets."""

    name, judges, floor = "heap", True, 0

    def __init__(self, why: str = "") -> None:
        self.size = 0
        self.why = why
        self.stopped = 0

    def start(self) -> None:
        if self.why:
            raise ProbeUnavailable(self.why)

    def stop(self) -> None:
        self.stopped += 1

    def read(self) -> int:
        return self.size

    def begin_record(self) -> None:
        self.recorded = self.size

    def end_record(self) -> HostGrowth:
        return HostGrowth(self.size - self.recorded)


def fixture_of_10_bytes() -> tuple[Heap, CounterWatch]:
    """The counter, and the watch within the run that has set up fixture 1."""
    heap = Heap()
    watch = CounterWatch((), [heap])
    watch.begin()
    watch.apart.setup_begins(0, PLACE, Policy())
    heap.size = 10
    watch.apart.setup_ends(1, 0.0, failed=False)
    return heap, watch


def test_growth_is_what_the_test_itself_added() -> None:
    heap = Heap()
    watch = CounterWatch((), [heap])
    watch.begin()
    heap.size = 100
    watch.apart.setup_begins(0, PLACE, Policy())
    heap.size = 1100
    watch.apart.setup_ends(1, 0.0, failed=False)
    heap.size = 1150
    assert watch.end().bytes == {(HOST, "heap"): 150}


GIB = 2**30


def reading(allocated: int, requested: int | None) -> dict[str, DeviceReading]:
    return {"cuda:0": DeviceReading(allocated, requested)}


@pytest.mark.parametrize(("before", "after"), [(None, GIB - 12), (GIB - 12, None)])
def test_a_counter_that_one_reading_lacks_is_not_compared(before: int | None, after: int | None) -> None:
    devices = Devices()
    watch = CounterWatch([devices], ())
    devices.readings = reading(GIB, before)
    watch.begin()
    devices.readings = reading(GIB + 512, after)
    assert watch.end().bytes == {("cuda:0", "allocated"): 512}


@pytest.mark.parametrize("lacking", range(3))
def test_a_counter_that_a_fixture_s_reading_lacks_is_not_compared(lacking: int) -> None:
    devices = Devices()
    watch = CounterWatch([devices], ())
    readings = [reading(GIB + size, None if lacking == step else GIB + size) for step, size in enumerate((0, 100, 107))]
    devices.readings = reading(GIB, GIB)
    watch.begin()
    devices.readings = readings[0]
    watch.apart.setup_begins(0, PLACE, Policy())
    devices.readings = readings[1]
    watch.apart.setup_ends(1, 0.0, failed=False)
    devices.readings = readings[2]
    assert watch.end().of("cuda:0") == 7


def test_a_device_that_was_unread_for_a_while_is_not_compared_with_nothing() -> None:
    devices = Devices()
    watch = CounterWatch([devices], ())
    devices.readings = reading(GIB, GIB)
    watch.begin()
    devices.readings = {}
    assert watch.end().bytes == {}
    watch.begin()
    devices.readings = reading(GIB, GIB)
    growth = watch.end()
    assert (growth.bytes, growth.first_used) == ({}, frozenset())


def test_a_device_that_was_never_used_before_was_empty() -> None:
    devices = Devices()
    watch = CounterWatch([devices], ())
    watch.begin()
    devices.readings = reading(512, 40)
    growth = watch.end()
    assert growth.of("cuda:0") == 40
    assert growth.first_used == {"cuda:0"}


def test_modules_that_a_run_imports_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = CounterWatch((), [Heap()])
    watch.begin()
    for number in range(3):
        monkeypatch.setitem(sys.modules, f"imported_by_a_test_{number}", types.ModuleType("imported"))
    assert watch.end().imported == 3 * MODULE_BYTES
    watch.begin()
    monkeypatch.delitem(sys.modules, "imported_by_a_test_0")
    assert watch.end().imported == 0


def test_a_fixture_set_up_within_another_one_counts_once() -> None:
    heap = Heap()
    watch = CounterWatch((), [heap])
    watch.begin()
    watch.apart.setup_begins(0, PLACE, Policy())
    heap.size = 10
    watch.apart.setup_begins(0, PLACE, Policy())
    heap.size = 110
    watch.apart.setup_ends(2, 0.0, failed=False)
    heap.size = 111
    watch.apart.setup_ends(1, 0.0, failed=False)
    assert watch.end().bytes == {(HOST, "heap"): 0}
    watch.begin()
    watch.apart.teardown_begins(0)
    heap.size = 100
    watch.apart.teardown_ends(1)
    watch.apart.teardown_begins(0)
    heap.size = 0
    watch.apart.teardown_ends(2)
    assert watch.end().bytes == {(HOST, "heap"): 0}


def test_what_a_test_puts_into_a_fixture_that_it_sets_up_and_that_dies_with_it_is_not_left() -> None:
    heap, watch = fixture_of_10_bytes()
    heap.size = 15  # the test adds to it
    watch.apart.teardown_begins(0)
    heap.size = 0
    watch.apart.teardown_ends(1)
    assert watch.end().bytes == {(HOST, "heap"): 0}


@pytest.mark.parametrize("nested", [False, True])
def test_what_earlier_tests_put_into_a_fixture_is_no_credit_of_the_test_that_it_dies_with(*, nested: bool) -> None:
    heap, watch = fixture_of_10_bytes()
    heap.size = 25  # an earlier test adds to it
    watch.begin()
    heap.size = 32  # this one leaves 7 elsewhere
    watch.apart.teardown_begins(0)
    if nested:
        watch.apart.teardown_begins(0)
    heap.size = 7
    if nested:
        watch.apart.teardown_ends(2)
    watch.apart.teardown_ends(1)
    assert watch.end().bytes == {(HOST, "heap"): 7}


def test_what_a_fixture_s_teardown_adds_is_not_the_test_s() -> None:
    heap = Heap()
    watch = CounterWatch((), [heap])
    watch.begin()
    watch.apart.teardown_begins(0)
    heap.size = 12
    watch.apart.teardown_ends(1)
    assert watch.end().bytes == {(HOST, "heap"): 0}


def test_a_fixture_that_does_not_let_go_is_not_the_last_test_s() -> None:
    _, watch = fixture_of_10_bytes()
    watch.begin()
    watch.apart.teardown_begins(0)
    watch.apart.teardown_ends(1)
    assert watch.end().bytes == {(HOST, "heap"): 0}


def test_a_device_used_for_the_first_time_is_told_apart() -> None:
    devices = Devices()
    watch = CounterWatch([devices], ())
    watch.begin()
    devices.readings = {"cuda:0": DeviceReading(512, 300, 2048)}
    growth = watch.end()
    assert growth.first_used == {"cuda:0"}
    assert growth.of("cuda:0") == 300
    assert growth.devices == ["cuda:0"]
    watch.begin()
    assert watch.end().first_used == frozenset()


def test_a_probe_that_fails_in_mid_run_is_not_asked_again() -> None:
    devices = Devices()
    heap = Heap()
    watch = CounterWatch([devices], [heap])
    watch.begin()
    devices.readings = {"cuda:0": DeviceReading(1)}
    devices.error = RuntimeError("CUDA error: device lost\nand more")
    assert watch.end().devices == []
    watch.begin()
    assert watch.faults == ["fake devices failed: RuntimeError: CUDA error: device lost and more"]
    heap.size = 7
    assert watch.end().bytes == {(HOST, "heap"): 7}


def test_a_device_that_fails_in_mid_run_is_told_once_and_its_allocator_still_counts() -> None:
    devices = Devices()
    watch = CounterWatch([devices], [])
    devices.readings, devices.in_use = {"cuda:0": DeviceReading(100, reserved=1000)}, {"cuda:0": 1000}
    watch.begin()
    devices.readings = {"cuda:0": DeviceReading(300, reserved=1000)}
    devices.in_use = {"cuda:0": RuntimeError("CUDA error: an illegal memory access\nadvice")}
    assert watch.end().bytes == {("cuda:0", "allocated"): 200, ("cuda:0", "reserved"): 0}
    watch.begin()
    assert watch.end().bytes == {("cuda:0", "allocated"): 0, ("cuda:0", "reserved"): 0}
    said = "cuda:0 failed, only the allocator's figures are watched: RuntimeError: CUDA error: an illegal memory access"
    assert watch.faults == [said]


def test_a_device_that_is_lost_is_named_and_its_framework_is_not_asked_again() -> None:
    class Sticky(Devices):
        asked = 0

        def used(self, device: str) -> int | None:
            self.asked += 1
            return super().used(device)

        def why_lost(self, error: Exception) -> str | None:
            return f"it says {error}"

    devices, heap = Sticky(), Heap()
    watch = CounterWatch([devices], [heap])
    devices.readings = {f"cuda:{index}": DeviceReading(100, reserved=1000) for index in range(2)}
    devices.in_use = {"cuda:0": 1000, "cuda:1": 1000}
    watch.begin()
    assert (watch.lost, watch.has_answered) == (None, True)
    devices.in_use = {"cuda:0": RuntimeError("sticky"), "cuda:1": RuntimeError("sticky")}
    asked = devices.asked
    heap.size = 7
    assert watch.end().bytes[HOST, "heap"] == 7
    assert watch.lost == ("cuda:0", "it says sticky")
    watch.begin()
    assert watch.end().bytes == {(HOST, "heap"): 0}
    assert devices.asked == asked + 1
    assert watch.faults == watch.failures == []


def test_a_device_may_be_lost_where_its_counters_are_read() -> None:
    class Sticky(Devices):
        def why_lost(self, error: Exception) -> str | None:
            return str(error)

    devices = Sticky()
    watch = CounterWatch([devices], [])
    watch.begin()
    devices.error = RuntimeError("sticky")
    watch.end()
    assert watch.lost == ("a device of fake devices", "sticky")
    assert watch.faults == []


def test_a_probe_that_is_not_available_is_told() -> None:
    heap = Heap("no heap_info on this system")
    watch = CounterWatch((), [heap])
    watch.start()
    watch.begin()
    assert watch.end().bytes == {}
    assert watch.faults == ["heap not watched: no heap_info on this system"]
    assert heap.stopped == 1


def test_a_counter_that_turns_up_late_is_no_growth() -> None:
    class Late(Heap):
        def read(self) -> int:
            if self.size == 0:
                raise OSError("not yet")
            return self.size

    first, watch = Heap(), CounterWatch((), [])
    watch.begin()
    watch._host.append(first)
    first.size = 100
    assert watch.end().bytes == {}


def test_the_record_has_what_was_before_and_after() -> None:
    devices, heap = Devices(), Heap()
    devices.readings = {"cuda:0": DeviceReading(1024, 1000, 4096)}
    watch = CounterWatch([devices], [heap])
    watch.begin()
    devices.readings = {"cuda:0": DeviceReading(2048, 2000, 4096)}
    heap.size = 5
    watch.end()
    assert watch.record({"cuda:0": 3000, "cuda:1": 1}) == {
        "cuda:0": {
            "allocated_before": 1024,
            "allocated_after": 2048,
            "reserved_before": 4096,
            "reserved_after": 4096,
            "peak": 3000,
        },
        "host": {"heap_before": 0, "heap_after": 5},
    }


def record(nodeid: str, worker: str = "main", **memory: dict[str, int]) -> TestRecord:
    return TestRecord(
        nodeid,
        "clean",
        None,
        "passed",
        worker,
        0.1,
        0.0,
        {key.replace("_", ":"): value for key, value in memory.items()},
    )


def counters(before: int, after: int, peak: int | None = None) -> dict[str, int]:
    found = {"allocated_before": before, "allocated_after": after}
    return found if peak is None else {**found, "peak": peak}


def test_the_heaviest_tests_and_the_drift() -> None:
    tests = [
        record("a", cuda_0=counters(10, 20, 900), host={"heap_before": 1, "heap_after": 2}),
        record("b", cuda_0=counters(20, 15, 1500)),
        record("c", "gw1", cuda_0=counters(0, 7, 7)),
        record("d", host={"heap_before": 0, "heap_after": 10**9}),
    ]
    usage = describe_usage(tests, 2)
    assert usage["drift"] == {"cuda:0": {"allocated": 12}, "host": {"heap": 10**9 - 1}}
    assert usage["peaks"] == {"cuda:0": 1500}
    assert usage["heaviest"] == [
        {"nodeid": "b", "device": "cuda:0", "bytes": 1480, "what": "peak"},
        {"nodeid": "a", "device": "cuda:0", "bytes": 890, "what": "peak"},
    ]


def test_without_a_device_the_host_s_growth_ranks() -> None:
    tests = [
        record(name, host={"heap_before": 0, "heap_after": size}) for name, size in (("a", 5), ("b", 9), ("c", -1))
    ]
    assert [entry["nodeid"] for entry in describe_usage(tests, 5)["heaviest"]] == ["b", "a"]


def test_nothing_measured_nothing_told() -> None:
    assert describe_usage([record("a")], 5) == {}


@pytest.mark.parametrize("count", [0, 1])
def test_no_more_than_asked(count: int) -> None:
    tests = [record(name, host={"heap_before": 0, "heap_after": 5}) for name in "ab"]
    assert len(describe_usage(tests, count)["heaviest"]) == count


def test_the_devices_are_asked_once_a_test_and_the_host_anew() -> None:
    devices, heap = Devices(), Heap()
    devices.readings = {"cuda:0": DeviceReading(1024, 1024, 4096)}
    watch = CounterWatch([devices], [heap])
    watch.begin()
    heap.size = 5000  # garbage of this test, which goes when it was judged
    watch.end()
    watch.carry_over()
    heap.size, devices.readings = 0, {"cuda:0": DeviceReading(1536, 1536, 4096)}
    watch.begin()
    heap.size = 100
    assert watch.end().bytes == {
        (HOST, "heap"): 100,
        ("cuda:0", "allocated"): 512,
        ("cuda:0", "requested"): 512,
        ("cuda:0", "reserved"): 0,
    }
    devices.readings = {"cuda:0": DeviceReading(512, 512, 4096)}
    watch.begin()  # once
    assert watch.end().of("cuda:0") == 0


@pytest.mark.parametrize("counted", [True, False])
def test_what_collections_free_within_a_run_may_be_earlier_tests(*, counted: bool) -> None:
    heap = Heap()
    heap.counts_heap = counted  # the others are not asked within a collection: pympler walks over the heap
    watch = CounterWatch((), [heap])
    watch.begin()
    heap.size = 100
    for freed in (30, -4, 12):
        watch.note_collection("start")
        heap.size -= freed
        watch.note_collection("stop")
    growth = watch.end()
    assert growth.bytes == {(HOST, "heap"): 62}
    assert growth.at_most().bytes == {(HOST, "heap"): 104 if counted else 62}
    watch.begin()
    assert watch.end().at_most().bytes == {(HOST, "heap"): 0}


@pytest.mark.parametrize("set_up_before", [True, False])
def test_what_the_teardown_of_an_older_fixture_collects_hides_nothing(*, set_up_before: bool) -> None:
    """Its garbage is left out of the test's growth: `tearDownClass` with `gc.collect()` made a suspect of each class's last test."""
    heap = Heap()
    heap.counts_heap = True
    watch = CounterWatch((), [heap])
    watch.begin()
    watch.apart.setup_begins(0, PLACE, Policy())
    heap.size += 100
    watch.apart.setup_ends(1, 0.0, failed=False)
    if set_up_before:
        watch.begin()
    heap.size += 7
    watch.apart.teardown_begins(0)
    watch.note_collection("start")
    heap.size -= 100
    watch.note_collection("stop")
    watch.apart.teardown_ends(1)
    growth = watch.end()
    assert growth.bytes == {(HOST, "heap"): 7}
    # Of a fixture that the run has set up itself as much is left out as its setup has added: the rest may be earlier tests'.
    assert growth.at_most().bytes == {(HOST, "heap"): 7 if set_up_before else 107}


def test_a_scan_tells_of_collections_within_a_test_alone() -> None:
    phases: list[str] = []
    before = len(gc.callbacks)
    scan = ScanDetector([])
    scan.watch_collections(phases.append)
    gc.collect(0)
    scan.open()
    scan.open()
    gc.collect(0)
    scan.close()
    gc.collect(0)
    scan.stop()
    assert phases == ["start", "stop"]
    assert len(gc.callbacks) == before


def test_what_a_fixture_adds_is_read_anew() -> None:
    class Stale(Heap):
        """Says briefly what it said last."""

        last = 0

        def read(self) -> int:
            self.last = self.size
            return self.size

        def read_briefly(self, least: Callable[[], int]) -> int:
            return self.last

    heap = Stale()
    watch = CounterWatch((), [heap])
    watch.begin()
    watch.apart.setup_begins(0, PLACE, Policy())
    heap.size = 5000
    watch.apart.setup_ends(1, 0.0, failed=False)
    assert watch.end(int).bytes == {(HOST, "heap"): 0}
    assert watch.end().bytes == {(HOST, "heap"): 0}


def test_what_the_plugin_adds_within_a_test_is_not_the_tests() -> None:
    heap = Heap()
    watch = CounterWatch((), [heap])
    watch.begin()
    heap.size = 100
    with watch.apart.kept_apart():
        heap.size += 5_000
    heap.size += 20
    assert watch.end().bytes == {(HOST, "heap"): 120}
    watch.begin()
    heap.size += 7
    assert watch.end().bytes == {(HOST, "heap"): 7}
