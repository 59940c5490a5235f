"""Two frameworks on one device, and a framework whose memory is the C heap's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.late import LateDevices
from pytest_gpuleak.adapters.probe_protocol import DeviceReading, HostProbe, total_of
from pytest_gpuleak.adapters.registry import own_frameworks
from pytest_gpuleak.engine.detect.counters import CounterWatch
from pytest_gpuleak.engine.detect.peak_meter import PeakMeter
from tests.support.fake_devices import MIB, FakeDevices

if TYPE_CHECKING:
    from pytest_gpuleak.adapters.probe_protocol import DeviceProbe


class Allocator(FakeDevices):
    """A framework with an allocator of its own."""

    own_allocator = True


class Heap(HostProbe):
    """A host counter."""

    name, judges, floor = "heap", True, 0

    def __init__(self, size: int, *, counts_heap: bool) -> None:
        self.size, self.counts_heap = size, counts_heap

    def start(self) -> None:
        pass

    stop = start

    def read(self) -> int:
        return self.size


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (DeviceReading(10), DeviceReading(5), DeviceReading(15)),
        (DeviceReading(10, requested=9, reserved=20), DeviceReading(5, reserved=8), DeviceReading(15, reserved=28)),
        (DeviceReading(10, requested=9), DeviceReading(5, requested=5), DeviceReading(15, requested=14)),
        (DeviceReading(10, reserved=20), DeviceReading(5), DeviceReading(15, reserved=25)),
        (DeviceReading(10, peak=30), DeviceReading(5), DeviceReading(15, peak=35)),
        (DeviceReading(10, peak=30), DeviceReading(5, peak=6), DeviceReading(15, peak=36)),
        (DeviceReading(10, active=12), DeviceReading(5), DeviceReading(15)),
    ],
)
def test_figures_are_added_where_both_count_them(one: DeviceReading, other: DeviceReading, both: DeviceReading) -> None:
    assert total_of(one, other) == total_of(other, one) == both


def test_a_leak_beside_what_another_framework_frees_is_seen_on_the_whole() -> None:
    first, second = FakeDevices(), Allocator()
    first.take(4, "cuda:0")
    second.take(1, "cuda:0")
    watch = CounterWatch([first, second], ())
    watch.begin()
    second.take(2, "cuda:0")
    growth = watch.end()
    assert growth.of("cuda:0") == 2 * MIB
    assert watch.record({})["cuda:0"]["allocated_after"] == 7 * MIB
    assert watch.faults == []


def test_a_framework_that_may_count_the_same_is_left_out() -> None:
    first, second = FakeDevices(), FakeDevices()
    first.take(4, "cuda:0")
    second.take(4, "cuda:0")
    watch = CounterWatch([first, second], ())
    assert watch.read()["cuda:0", "allocated"] == 4 * MIB
    assert watch.faults == ["cuda:0 of fake not watched: another framework counts its memory too"]


@pytest.mark.parametrize(("own", "total"), [(True, 7), (False, 4)])
def test_peaks_are_added_alike(own: bool, total: int) -> None:
    first, second = FakeDevices(), Allocator() if own else FakeDevices()
    first.take(1, "cuda:0")
    meter = PeakMeter([first, second])
    meter.begin()
    with first.taken(3, "cuda:0"):
        pass
    second.take(3, "cuda:0")
    meter.end()
    allocated = meter.peaks()["cuda:0"].allocated
    assert allocated is not None
    assert allocated.total == total * MIB


@pytest.mark.parametrize(("counts_heap", "size"), [(True, 92), (False, 100)])
def test_memory_in_the_c_heap_is_a_devices_or_the_hosts(counts_heap: bool, size: int) -> None:
    pool: Any = FakeDevices()
    pool.in_heap = True
    pool.take(6, "mlx", reserve=8)
    watch = CounterWatch([pool], [Heap(100 * MIB, counts_heap=counts_heap)])
    assert watch.read()["host", "heap"] == size * MIB


def test_a_probe_is_made_once_its_module_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[DeviceProbe] = []

    def make() -> DeviceProbe:
        probe: Any = FakeDevices()
        probe.in_heap = True
        probe.take(1)
        probe.absent["fake"] = "why"
        made.append(probe)
        return made[0]

    late = LateDevices("late", "a_framework", make)
    late.begin_peaks()
    late.stop()
    assert (late.read(), late.idle, dict(late.absent), late.in_heap, late.used("fake:0")) == ({}, True, {}, False, None)
    assert made == []
    monkeypatch.setitem(__import__("sys").modules, "a_framework", None)
    assert list(late.read()) == list(late.read()) == ["fake:0"]
    assert (len(made), late.idle, dict(late.absent), late.in_heap) == (1, False, {"fake": "why"}, True)


def test_a_framework_that_is_not_used_does_not_hide_that_nothing_is_measured() -> None:
    broken, unused = FakeDevices(), LateDevices("unused", "no_such_module", FakeDevices)
    meter = PeakMeter([broken, unused])
    meter.begin()
    broken.broken = "device lost"
    meter.end()
    assert meter.fault == "RuntimeError: device lost"
    broken.broken = ""
    used = FakeDevices()
    meter = PeakMeter([broken, used])
    meter.begin()
    broken.broken = "device lost"
    meter.end()
    assert meter.fault == ""


def test_each_framework_but_the_first_adds_its_own_allocator_to_a_shared_device() -> None:
    probes = own_frameworks().devices
    assert {probe.name: getattr(probe, "own_allocator", False) for probe in probes[1:]} == {
        "cupy": True,
        "jax": True,
        "mlx": True,
        "tensorflow": True,
    }
