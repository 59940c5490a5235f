"""The probes of the devices for a whole run, and one meter of peaks: a framework counts the peak since one moment alone."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.session.fixtures import is_wider
from pytest_gpuleak.session.frameworks import shared_frameworks
from pytest_gpuleak.session.hooks import Hooks

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from pytest_gpuleak.adapters.probe_protocol import DeviceProbe, DeviceReading
    from pytest_gpuleak.model.findings import Finding
    from pytest_gpuleak.model.peaks import DevicePeak

DEVICE_PROBES: pytest.StashKey[list[DeviceProbe]] = pytest.StashKey()
"""Where the run's probes of the devices are kept, in the stash of pytest's config."""

BUDGET_FINDING: pytest.StashKey[Finding] = pytest.StashKey()
"""The finding on a test's budget, in the item's stash, once its last attempt has exceeded it."""

_HOOKS = "gpuleak-peaks"

_METER: pytest.StashKey[PeakMeter] = pytest.StashKey()


def shared_probes(config: pytest.Config) -> list[DeviceProbe]:
    """Return the run's probes of the devices: made when first asked for, stopped when the run ends; the same list always."""
    probes = config.stash.get(DEVICE_PROBES, None)
    if probes is None:
        probes = config.stash[DEVICE_PROBES] = shared_frameworks(config).devices
        config.add_cleanup(partial(_stop, probes))
    return probes


def _stop(probes: Sequence[DeviceProbe]) -> None:
    for probe in probes:
        with suppress(Exception):  # each of them leaves its framework as it was found
            probe.stop()


def shared_probe(config: pytest.Config) -> DeviceProbe:
    """The first of them."""
    return shared_probes(config)[0]


def shared_meter(config: pytest.Config) -> PeakMeter:
    """The run's meter: made, and put between the phases of the tests, when it is first asked for."""
    meter = config.stash.get(_METER, None)
    if meter is None:
        meter = config.stash[_METER] = PeakMeter(shared_probes(config))
        config.pluginmanager.register(MeterHooks(meter), _HOOKS)
    return meter


def take_over_meter(config: pytest.Config, *, needed: bool) -> MeterBrackets | None:
    """The brackets of the run's meter, for hooks that the caller has anyway: the meter's own are not needed.

    Args:
        config: pytest's config.
        needed: whether the caller reads peaks himself; if not, and no test has a budget, None is returned.
    """
    meter = config.stash.get(_METER, None)
    if meter is None:
        if not needed:
            return None
        meter = config.stash[_METER] = PeakMeter(shared_probes(config))
    else:
        config.pluginmanager.unregister(name=_HOOKS)
    return MeterBrackets(meter)


METRICS = ("allocated", "reserved")


class PeakMeter:
    """Measures how far a test raised the devices' counters, without what wider fixtures do meanwhile.

    A wider fixture is set up within the first test that asks for it. Before that the peak so far is kept, after it
    peaks begin anew, and what it has left allocated counts as having been there before the test.

    Args:
        probes: read the devices, a framework's each; probes may be added to the list. One that raises is not asked again.

    Attributes:
        active: whether a test is being measured.
        fault: why nothing more is measured: each probe has raised. Empty while all is well.
    """

    def __init__(self, probes: Sequence[DeviceProbe]) -> None:
        self._probes = probes
        self._failed: list[DeviceProbe] = []
        self._told: list[DeviceProbe] = []
        self._gauges: dict[tuple[str, str], _Gauge] = {}
        self._paused: list[dict[tuple[str, str], int]] = []
        self.active = False
        self.fault = ""

    def begin(self) -> None:
        """An attempt of a test begins: what is allocated now is not its own."""
        self._gauges.clear()
        self._paused.clear()
        self.active = True
        for key, (now, _) in self._read(restart=True).items():
            self._gauges[key] = _Gauge(now, now)

    def pause(self) -> None:
        """A wider fixture is about to be set up or torn down; may be nested."""
        if self.active:
            readings = {} if self._paused else self._read()
            if not self._paused:
                self._observe(readings, own=True)
            self._paused.append({key: now for key, (now, _) in readings.items()})

    def resume(self) -> None:
        """It has been."""
        if not self.active or not self._paused:
            return
        before = self._paused.pop()
        if self._paused:
            return  # within another one
        readings = self._read(restart=True)
        self._observe(readings, own=False)
        for key, (now, _) in readings.items():
            self._gauges[key].before += now - before.get(key, 0)

    def end(self) -> None:
        """The attempt is over, teardown included: `peaks` keeps what was measured, whatever happens next."""
        self._measure()
        self.active = False

    def peaks(self) -> dict[str, DevicePeak]:
        """The peaks of the attempt that began last, up to now or its end, by device. Empty after a fault."""
        self._measure()
        if self.fault or not self._gauges:
            return {}
        from pytest_gpuleak.model.peaks import DevicePeak, Peak

        found = {key: Peak(gauge.before, gauge.own, gauge.total, gauge.exact) for key, gauge in self._gauges.items()}
        devices = [device for device, metric in found if metric == METRICS[0]]
        return {device: DevicePeak(*(found.get((device, metric)) for metric in METRICS)) for device in devices}  # type: ignore[arg-type]

    def _measure(self) -> None:
        if self.active and not self._paused:
            self._observe(self._read(), own=True)

    def _observe(self, readings: dict[tuple[str, str], tuple[int, int | None]], *, own: bool) -> None:
        for key, (now, peak) in readings.items():
            gauge = self._gauges.setdefault(key, _Gauge(0, 0))
            top = now if peak is None else max(now, peak)
            gauge.exact = gauge.exact and peak is not None
            gauge.total = max(gauge.total, top)
            if own:
                gauge.own = max(gauge.own, top - gauge.before)

    def _read(self, *, restart: bool = False) -> dict[tuple[str, str], tuple[int, int | None]]:
        """Each counter and its peak, by device and metric; nothing once the probe has failed."""
        found: dict[tuple[str, str], tuple[int, int | None]] = {}
        if self.fault:
            return found
        for probe in self._probes:
            if probe in self._failed:
                continue
            try:
                readings = probe.read()
                if restart and not (probe.idle and probe in self._told):
                    probe.begin_peaks()
                    if probe not in self._told:
                        self._told.append(probe)
            except Exception as error:  # noqa: BLE001 - a device may be lost in the midst of a run, which goes on
                self._failed.append(probe)
                if len(self._failed) == len(self._probes):
                    self.fault = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                continue
            for device, reading in readings.items():
                if (device, METRICS[0]) not in found:  # else another framework uses it too, and was asked first
                    found.update(_counters(device, reading))
        return found


class _Gauge:
    """One counter of one device during a test."""

    __slots__ = ("before", "exact", "own", "total")

    def __init__(self, before: int, total: int) -> None:
        self.before = before
        self.own = 0
        self.total = total
        self.exact = True


def _counters(device: str, reading: DeviceReading) -> list[tuple[tuple[str, str], tuple[int, int | None]]]:
    counters = [((device, METRICS[0]), (reading.allocated, reading.peak))]
    if reading.reserved is not None:
        counters.append(((device, METRICS[1]), (reading.reserved, reading.reserved_peak)))
    return counters


class MeterBrackets:
    """Begins, pauses and ends the measurement of each attempt of each test, for whoever has the hooks.

    Args:
        meter: measures.
    """

    def __init__(self, meter: PeakMeter) -> None:
        self._meter = meter
        self._torn_down: set[int] = set()

    def begin(self) -> None:
        """An attempt begins; plugins that repeat tests make several within one protocol."""
        self._torn_down.clear()
        self._meter.begin()

    def end(self) -> None:
        """The attempt has ended with its teardown: what a re-run of the leak check does is not part of it."""
        self._meter.end()

    def enter_setup(self) -> None:
        """A fixture wider than the test is set up: what it takes is not the test's."""
        self._meter.pause()

    def leave_setup(self, fixturedef: Any) -> None:
        """It is."""
        self._meter.resume()
        # Finalizers are called last in, first out: from this one on the fixture's own run.
        fixturedef.addfinalizer(partial(self._enter_teardown, id(fixturedef)))

    def finalised(self, fixturedef: Any) -> None:
        """It has been torn down; within a test's setup where the next one asks for another parameter of it."""
        if id(fixturedef) in self._torn_down:
            self._torn_down.discard(id(fixturedef))
            self._meter.resume()

    def _enter_teardown(self, identity: int) -> None:
        if self._meter.active and identity not in self._torn_down:
            self._torn_down.add(identity)
            self._meter.pause()


class MeterHooks(Hooks):
    """The hooks that measure where the leak check, whose own hooks do it otherwise, is off.

    Args:
        meter: measures.
    """

    def __init__(self, meter: PeakMeter) -> None:
        self._brackets = MeterBrackets(meter)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        """An attempt begins."""
        __tracebackhide__ = True  # a failure's text shows only the user's frames, as without the plugin
        self._brackets.begin()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        """The attempt ends with its teardown."""
        __tracebackhide__ = True
        try:
            return (yield)
        finally:
            self._brackets.end()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        """What a wider fixture takes while it is set up is not the test's."""
        __tracebackhide__ = True
        if not is_wider(fixturedef):
            return (yield)
        self._brackets.enter_setup()
        try:
            return (yield)
        finally:
            self._brackets.leave_setup(fixturedef)

    def pytest_fixture_post_finalizer(self, fixturedef: Any) -> None:
        """It has been torn down."""
        self._brackets.finalised(fixturedef)
