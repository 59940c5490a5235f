"""Measure how far a test raises the devices' counters: a framework counts the peak since one moment only."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.probe_protocol import total_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_gpuleak.adapters.probe_protocol import BlockRecorder, DeviceProbe, DeviceReading, PeakRecorder
    from pytest_gpuleak.engine.detect.protocol import FixtureKey
    from pytest_gpuleak.model.outcomes import FixturePlace
    from pytest_gpuleak.model.peaks import DevicePeak
    from pytest_gpuleak.model.policy import Policy

METRICS = ("allocated", "reserved")


class PeakMeter:
    """Measure how far a test raised the devices' counters, without what higher-scoped fixtures do meanwhile.

    The peak before a fixture's setup is kept; after it peaks restart, and what the fixture left allocated counts as
    there before the test. Probes may be added to the list. A probe that raises is not asked again: `fault` says why
    nothing more is measured, once each probe of a device in use has raised. `free_workspaces` frees what libraries keep
    on devices between calls.
    """

    def __init__(self, probes: Sequence[DeviceProbe], free_workspaces: Callable[[], object] | None = None) -> None:
        self._probes = probes
        self._free_workspaces = free_workspaces
        self._apart = False
        self._failed: list[DeviceProbe] = []
        self._told: list[DeviceProbe] = []  # probes whose peaks were restarted
        self._gauges: dict[tuple[str, str], _Gauge] = {}
        self._paused: list[dict[tuple[str, str], int]] = []
        self._torn_down: set[FixtureKey] = set()  # higher-scoped fixtures whose finalizers run
        self.active = False
        self.fault = ""
        self._error = ""
        self._recorder: PeakRecorder | None = None
        self._estimating: BlockRecorder | None = None

    @contextlib.contextmanager
    def measured_apart(self, recorder: PeakRecorder) -> Iterator[None]:
        """Measure another run within the context, without those parts that pauses leave out for the `recorder` too.

        After the context, `peaks` returns what was measured before it.
        """
        kept = self._gauges, self._paused, self._torn_down
        self._gauges, self._paused, self._torn_down = {}, [], set()
        self._recorder = recorder
        try:
            self.begin()
            yield
        finally:
            self._recorder, self.active = None, False
            self._gauges, self._paused, self._torn_down = kept

    def follow(self, recorder: BlockRecorder | None) -> None:
        """Pause and resume a recorder of this attempt together with the measurement; None: no more."""
        self._estimating = recorder

    @property
    def judges(self) -> bool:
        """Tell whether a test's own run is measured, and no re-run apart from it."""
        return self.active and self._recorder is None

    def begin(self, *, apart: bool = False) -> None:
        """Begin to measure an attempt of a test: what is allocated now is not its own.

        With `apart` workspaces are left out of its peaks, and counted apart. Which test allocates them follows from the
        order of the tests: they are freed before, and what is freed after was allocated meanwhile. A run that is
        measured apart is measured as the one before it.
        """
        if self._recorder is None:
            self._apart = apart and self._free_workspaces is not None
        self._gauges.clear()
        self._paused.clear()
        self._torn_down.clear()
        self.active = True
        for key, (now, _) in self._restart().items():
            self._gauges[key] = _Gauge(now, now)

    def setup_begins(self, fixture: FixtureKey, place: FixturePlace, policy: Policy) -> None:  # noqa: ARG002
        """Pause for the setup."""
        self.pause()

    def setup_ends(self, fixture: FixtureKey, duration_s: float, *, failed: bool) -> None:  # noqa: ARG002
        """Resume after the setup."""
        self.resume()

    def teardown_begins(self, fixture: FixtureKey) -> None:
        """Pause for the teardown, if a test is measured."""
        if self.active and fixture not in self._torn_down:
            self._torn_down.add(fixture)
            self.pause()

    def teardown_ends(self, fixture: FixtureKey) -> None:
        """Resume after the teardown, which may come within a test's setup: the next test requests another parameter."""
        if fixture in self._torn_down:
            self._torn_down.discard(fixture)
            self.resume()

    def pause(self) -> None:
        """Pause for a higher-scoped fixture, whose growth is not the test's. May be nested."""
        if self.active:
            for recorder in (self._recorder, self._estimating):
                if recorder is not None:
                    recorder.pause()
            left = {} if self._paused else self._observe(own=True)
            self._paused.append(left)

    def resume(self) -> None:
        """Measure again; memory that the fixture has left allocated was there before the test."""
        if not self.active or not self._paused:
            return
        before = self._paused.pop()
        if self._paused:
            return  # within another pause
        for recorder in (self._recorder, self._estimating):
            if recorder is not None:
                recorder.resume()
        self._observe(own=False)
        for key, (now, _) in self._restart().items():
            gauge = self._gauges.setdefault(key, _Gauge(0, 0))
            gauge.before += now - before.get(key, 0)
            gauge.seen = 0

    def end(self) -> None:
        """End the measurement after the teardown: `peaks` keeps what was measured."""
        self._measure()
        self.active = False

    def peaks(self) -> dict[str, DevicePeak]:
        """Return by device the peaks of the last attempt, up to now or its end. Empty after a fault."""
        self._measure()
        if self.fault or not self._gauges:
            return {}
        from pytest_gpuleak.model.peaks import DevicePeak, Peak

        found = {key: Peak(*gauge.figures()) for key, gauge in self._gauges.items()}
        devices = [device for device, metric in found if metric == METRICS[0]]
        return {device: DevicePeak(*(found.get((device, metric)) for metric in METRICS)) for device in devices}  # type: ignore[arg-type]

    def _measure(self) -> None:
        if self.active and not self._paused:
            self._observe(own=True)

    def _restart(self) -> dict[tuple[str, str], tuple[int, int | None]]:
        """Restart the peaks, without workspaces; return the readings."""
        if self._apart and self._free_workspaces is not None:
            self._free_workspaces()
        return self._read(restart=True)

    def _observe(self, *, own: bool) -> dict[tuple[str, str], int]:
        """Note the peaks since the last restart; return what is in use, once workspaces are freed that are counted apart."""
        readings = self._read()
        left = {key: now for key, (now, _) in readings.items()}
        if self._apart and self._free_workspaces is not None:
            self._free_workspaces()
            left.update((key, min(left.get(key, now), now)) for key, (now, _) in self._read().items())
        for key, (now, peak) in readings.items():
            gauge = self._gauges.setdefault(key, _Gauge(0, 0))
            gauge.exact = gauge.exact and peak is not None
            gauge.note(now if peak is None else max(now, peak), now - left[key], own=own)
        return left

    def _read(self, *, restart: bool = False) -> dict[tuple[str, str], tuple[int, int | None]]:
        found: dict[tuple[str, str], tuple[int, int | None]] = {}
        met: dict[str, DeviceReading] = {}
        for probe in self._probes:
            for device, reading in self._ask(probe, restart=restart).items():
                if device not in met:
                    met[device] = reading
                elif probe.own_allocator:
                    met[device] = total_of(met[device], reading)
        if self._failed and all(probe in self._failed or probe.idle for probe in self._probes):
            self.fault = self._error
        for device, reading in met.items():
            found.update(_counters(device, reading))
        return found

    def _ask(self, probe: DeviceProbe, *, restart: bool) -> Mapping[str, DeviceReading]:
        """Return a probe's readings; none once it has failed."""
        if probe in self._failed:
            return {}
        try:
            readings = probe.read()
            if restart and not (probe.idle and probe in self._told):
                probe.begin_peaks()
                if probe not in self._told:
                    self._told.append(probe)
        except Exception as error:  # noqa: BLE001 - a device may be lost during a run, which goes on
            self._failed.append(probe)
            self._error = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            return {}
        return readings


class _Gauge:
    """One counter's peaks in bytes: `own` and `total` without workspaces, as far as these can have been in them."""

    __slots__ = ("before", "exact", "own", "own_with", "seen", "total", "total_with")

    def __init__(self, before: int, total: int) -> None:
        self.before = before
        self.own = self.own_with = 0
        self.total = self.total_with = total
        self.seen = 0
        """The highest peak since the last restart: while it does not rise, workspaces are later than it."""
        self.exact = True

    def note(self, top: int, workspaces: int, *, own: bool) -> None:
        if top <= self.seen:
            return
        self.seen = top
        self.total = max(self.total, top - workspaces)
        self.total_with = max(self.total_with, top)
        if own:
            self.own = max(self.own, top - workspaces - self.before)
            self.own_with = max(self.own_with, top - self.before)

    def figures(self) -> tuple[int, int, int, bool, int]:
        """Return what a `Peak` has."""
        workspaces = max(self.own_with - self.own, self.total_with - self.total)
        return self.before, self.own, self.total, self.exact, workspaces


def _counters(device: str, reading: DeviceReading) -> list[tuple[tuple[str, str], tuple[int, int | None]]]:
    counters = [((device, METRICS[0]), (reading.allocated, reading.peak))]
    if reading.reserved is not None:
        counters.append(((device, METRICS[1]), (reading.reserved, reading.reserved_peak)))
    return counters
