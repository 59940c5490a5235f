"""The meter of peaks, on devices of numbers alone."""

from __future__ import annotations

import pytest

from pytest_gpuleak.engine.detect.peak_meter import PeakMeter
from pytest_gpuleak.model.peaks import Peak
from tests.support.fake_devices import MIB, FakeDevices


@pytest.fixture
def devices() -> FakeDevices:
    return FakeDevices()


@pytest.fixture
def meter(devices: FakeDevices) -> PeakMeter:
    return PeakMeter([devices])


def mib(peak: Peak) -> tuple[int, int, int]:
    return peak.before // MIB, peak.own // MIB, peak.total // MIB


def test_the_peak_is_over_what_was_before(devices: FakeDevices, meter: PeakMeter) -> None:
    with devices.taken(500):
        pass
    devices.take(100)
    meter.begin()
    with devices.taken(30):
        pass
    assert mib(meter.peaks()["fake:0"].allocated) == (100, 30, 130)


def test_a_test_that_frees_what_was_there_has_added_nothing(devices: FakeDevices, meter: PeakMeter) -> None:
    devices.take(100)
    meter.begin()
    devices.give(80)
    devices.take(50)
    assert mib(meter.peaks()["fake:0"].allocated) == (100, 0, 100)


def test_each_attempt_begins_anew(devices: FakeDevices, meter: PeakMeter) -> None:
    meter.begin()
    devices.take(30)
    meter.end()
    meter.begin()
    assert mib(meter.peaks()["fake:0"].allocated) == (30, 0, 30)


def test_a_device_that_is_first_used_in_the_test_had_nothing_before(devices: FakeDevices, meter: PeakMeter) -> None:
    meter.begin()
    assert meter.peaks() == {}
    with devices.taken(30, "fake:1"):
        pass
    assert {name: mib(peak.allocated) for name, peak in meter.peaks().items()} == {"fake:1": (0, 30, 30)}


def test_a_wider_fixture_s_own_peak_is_left_out_and_what_it_keeps_was_before(
    devices: FakeDevices, meter: PeakMeter
) -> None:
    devices.take(10)
    meter.begin()
    with devices.taken(40):
        pass
    devices.take(5)
    meter.pause()
    with devices.taken(500):
        pass
    devices.take(200)
    meter.resume()
    with devices.taken(20):
        pass
    assert mib(meter.peaks()["fake:0"].allocated) == (210, 40, 515)
    with devices.taken(50):
        pass
    assert mib(meter.peaks()["fake:0"].allocated) == (210, 55, 515)


def test_wider_fixtures_within_each_other_are_left_out_once(devices: FakeDevices, meter: PeakMeter) -> None:
    meter.begin()
    meter.pause()
    devices.take(100)
    meter.pause()
    devices.take(30)
    meter.resume()
    devices.take(7)
    meter.resume()
    devices.take(1)
    assert mib(meter.peaks()["fake:0"].allocated) == (137, 1, 138)
    meter.resume()  # one too many is none


def test_a_wider_fixture_that_is_torn_down_meanwhile_takes_its_memory_along(
    devices: FakeDevices, meter: PeakMeter
) -> None:
    devices.take(300)
    meter.begin()
    meter.pause()
    devices.give(300)
    meter.resume()
    meter.pause()
    devices.take(200)
    meter.resume()
    devices.take(20)
    assert mib(meter.peaks()["fake:0"].allocated) == (200, 20, 300)


def test_after_the_end_nothing_is_added(devices: FakeDevices, meter: PeakMeter) -> None:
    meter.begin()
    devices.take(10)
    meter.end()
    begun = devices.begun
    meter.pause()
    devices.take(500)
    meter.resume()
    assert mib(meter.peaks()["fake:0"].allocated) == (0, 10, 10)
    assert devices.begun == begun


def test_reserved_is_measured_beside(devices: FakeDevices, meter: PeakMeter) -> None:
    devices.take(10, reserve=20)
    meter.begin()
    devices.take(30, reserve=64)
    devices.empty_cache()
    reserved = meter.peaks()["fake:0"].reserved
    assert reserved is not None
    assert mib(reserved) == (20, 44, 64)


class Library:
    """Keeps a workspace of 8 MiB on a device from its first call on, until it is freed."""

    def __init__(self, devices: FakeDevices) -> None:
        self.devices = devices
        self.kept = 0
        devices.take(0)

    def call(self) -> None:
        if not self.kept:
            self.kept = 8
            self.devices.take(8)

    def free(self) -> None:
        self.devices.give(self.kept)
        self.kept = 0


def apart(peak: Peak) -> tuple[int, int, int]:
    return peak.before // MIB, peak.own // MIB, peak.workspaces // MIB


@pytest.mark.parametrize("already_there", [False, True])
def test_workspaces_are_counted_apart_whoever_has_allocated_them(devices: FakeDevices, already_there: bool) -> None:
    library = Library(devices)
    meter = PeakMeter([devices], library.free)
    if already_there:
        library.call()
    meter.begin(apart=True)
    with devices.taken(30):
        library.call()
    assert apart(meter.peaks()["fake:0"].allocated) == (0, 30, 8)
    library.call()
    assert apart(meter.peaks()["fake:0"].allocated) == (0, 30, 8)  # the peak was before it
    devices.take(40)
    meter.end()
    assert apart(meter.peaks()["fake:0"].allocated) == (0, 40, 0)  # which had no workspace in it
    meter.begin()
    library.call()
    assert apart(meter.peaks()["fake:0"].allocated) == (40, 8, 0)  # a test without a budget


def test_a_wider_fixture_s_workspace_is_no_memory_that_was_before(devices: FakeDevices) -> None:
    library = Library(devices)
    meter = PeakMeter([devices], library.free)
    meter.begin(apart=True)
    library.call()
    meter.pause()
    devices.take(100)
    library.call()
    meter.resume()
    with devices.taken(5):
        pass
    assert apart(meter.peaks()["fake:0"].allocated) == (100, 5, 3)  # 8 before the fixture, if not a workspace's
    with devices.taken(20):
        library.call()
    assert apart(meter.peaks()["fake:0"].allocated) == (100, 20, 8)


def test_what_is_not_counted_is_absent(devices: FakeDevices, meter: PeakMeter) -> None:
    devices.counts_peaks = devices.counts_reserved = False
    meter.begin()
    devices.take(30)
    meter.peaks()
    devices.give(30)
    found = meter.peaks()["fake:0"]
    assert found.reserved is None
    assert found.allocated == Peak(0, 30 * MIB, 30 * MIB, exact=False)


@pytest.mark.parametrize("moment", ["begin", "pause", "resume", "peaks"])
def test_a_probe_that_raises_ends_the_measuring_and_nothing_else(
    devices: FakeDevices, meter: PeakMeter, moment: str
) -> None:
    devices.take(10)
    for step in ("begin", "pause", "resume", "peaks"):
        if step == moment:
            devices.broken = "device\nlost"
        getattr(meter, step)()
    assert meter.fault == "RuntimeError: device lost"
    devices.broken = ""
    meter.begin()
    assert meter.peaks() == {}


class Recorder:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")


def test_another_run_is_measured_apart(devices: FakeDevices, meter: PeakMeter) -> None:
    meter.begin()
    with devices.taken(30):
        pass
    meter.end()
    devices.take(5)
    recorder = Recorder()
    with meter.measured_apart(recorder):  # type: ignore[arg-type] # what is asked of it
        meter.pause()
        devices.take(100)
        meter.resume()
        with devices.taken(7):
            pass
        assert mib(meter.peaks()["fake:0"].allocated) == (105, 7, 112)
    assert recorder.told == ["pause", "resume"]
    assert not meter.active
    assert mib(meter.peaks()["fake:0"].allocated) == (0, 30, 30)
    meter.begin()
    meter.pause()
    assert recorder.told == ["pause", "resume"]
