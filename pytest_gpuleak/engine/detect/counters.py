"""The counters of one process, read around each test: devices, host, and what of it is somebody else's."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from math import inf
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_gpuleak.model.readings import HOST, OUTSIDE, Growth, Key, ProbeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuleak.adapters.nvml.readings import NvmlReading
    from pytest_gpuleak.adapters.probe_protocol import DeviceProbe, DeviceReading, HostGrowth, HostProbe, Recorder
    from pytest_gpuleak.engine.detect.fixture_events import FixtureKey
    from pytest_gpuleak.engine.detect.outside_torch import Outside
    from pytest_gpuleak.model.outcomes import FixturePlace
    from pytest_gpuleak.model.policy import Policy


COUNTED = ("allocated", "requested", "reserved")
"""What of a device's reading is compared before and after."""


UNACCOUNTED = "unaccounted"
"""What is in use on a device, by anybody, beyond what torch has reserved: other processes move it as well."""

UNRECORDED = ("requested", UNACCOUNTED)
"""What is compared, but does not stand in the report."""

TRIED_CALLS = 8
DEAR_CALL_S = 100e-6
"""Seconds that asking the driver for a device's free memory may take, at its quickest of the first `TRIED_CALLS`."""


NEARLY_NOTHING = 256 * 1024
"""Bytes of the host's memory that may be missed: a quarter of what growth is looked into from."""

NOTHING: Mapping[Key, int] = MappingProxyType({})

MODULE_BYTES = 48 * 1024
"""Bytes of the host's memory that importing a module takes: 18 to 35 KiB on the mean of scipy, sklearn, gpytorch,
accelerate and torch._dynamo (Python 3.11; 60 to 1,300 modules each), 82 KiB of torch with its libraries."""


class MemoryWatch:
    """Reads the counters. A probe that fails is not asked again, and the run goes on.

    Args:
        device_probes: the devices' counters.
        host_probes: the host's.
        processes: what the driver says of each device by process: it costs milliseconds, and is asked only where more
            of a device is in use than torch accounts for.
        faults: where lines go on what could not be read.
    """

    def __init__(
        self,
        device_probes: Sequence[DeviceProbe],
        host_probes: Sequence[HostProbe],
        processes: Callable[[], Mapping[str, NvmlReading]] = dict,
        faults: list[str] | None = None,
    ) -> None:
        self._devices = list(device_probes)
        self._host = list(host_probes)
        self.faults: list[str] = [] if faults is None else faults
        """What could not be read, and why: a line each."""
        self.failures: list[str] = []
        """Of these, counters that failed: no fault of the machine's, which has them, but of the check."""
        self._processes = processes
        self._outside: Outside | None = None
        self._before: dict[Key, int] = {}
        self._after: dict[Key, int] = {}
        self._others: dict[Key, int] = {}
        self._levels: list[_Level] = []
        self._owned: dict[FixtureKey, dict[Key, int]] = {}
        self._standing: dict[Key, int] | None = None
        self._standing_host: dict[Key, int] = {}
        self._recording: list[tuple[HostProbe, Recorder]] = []
        self._use_calls = 0
        self._use_s = inf
        self._modules = 0

    def start(self) -> None:
        """Begin to watch the process; what cannot be read here is told in `faults`."""
        for probe in list(self._host):
            try:
                probe.start()
            except ProbeUnavailable as why:
                self._drop(probe, f"not watched: {why}", failed=False)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with a counter costs the run that counter
                self._drop(probe, f"not watched: {type(error).__name__}: {error}")

    def add_devices(self, probe: DeviceProbe) -> None:
        """Read another framework's devices from now on."""
        self._devices.append(probe)

    def stop(self) -> None:
        """Leave the process as it was found. Safe to call twice."""
        probes: list[DeviceProbe | HostProbe] = [*self._devices, *self._host]
        for probe in probes:
            with suppress(Exception):
                probe.stop()

    @property
    def host_probes(self) -> tuple[HostProbe, ...]:
        """The host's counters that can be read."""
        return tuple(self._host)

    def begin(self) -> None:
        """Begin a run of a test."""
        if self._others:
            self._others = {}
        self._levels.clear()
        self._before = self._standing or self.read(host=self._standing_host)
        self._standing = None
        if self._standing_host:
            self._standing_host = {}
        self._modules = len(sys.modules)
        if self._outside is not None:
            self._outside.begin()

    def carry_over(self) -> None:
        """What `end` has read last still holds when the next test begins: a reading of the heap takes tens of us.

        To be called after a test that was clean. What happens before the next one begins is counted as the next one's;
        after one that failed that would be the freeing of what its traceback holds.
        """
        self._standing = self._after

    def carry_over_host(self) -> None:
        """As `carry_over`, for the host alone, whose counters are not exact to the byte, after a test of any verdict.

        Not after one that has moved them far: what it left may go before the next one ends, and would hide what that adds.
        """
        host = {key: size for key, size in self._after.items() if key[0] == HOST}
        if all(abs(size - self._before.get(key, 0)) < NEARLY_NOTHING for key, size in host.items()):
            self._standing_host = host

    def setup_begins(self, fixture: FixtureKey, place: FixturePlace, policy: Policy) -> None:  # noqa: ARG002
        """See `FixtureEvents`: what is added from here on is no test's."""
        # A reused reading may lag; the error then lands on the fixture, which is not judged by counters.
        self._levels.append(_Level(self.read(brief=True)))

    def setup_ends(self, fixture: FixtureKey, duration_s: float, *, failed: bool) -> None:  # noqa: ARG002
        """See `FixtureEvents`: book what the setup added to the fixture."""
        if not self._levels:
            return  # its setup began before the counters were watched
        level = self._levels.pop()
        # Not briefly: what was missed of the fixture's would be taken for the test's.
        added = _less(self.read(), level.before)
        self._owned[fixture] = _less(added, level.inner)
        inner = self._levels[-1].inner if self._levels else self._others
        for key, size in added.items():
            inner[key] = inner.get(key, 0) + size

    def teardown_begins(self, fixture: FixtureKey) -> None:  # noqa: ARG002
        """See `FixtureEvents`."""
        self._levels.append(_Level(self.read(brief=True)))

    def teardown_ends(self, fixture: FixtureKey) -> None:
        """See `FixtureEvents`: leave the fixture's own memory, as far as it is gone, out of the test's account.

        What the test has put into the fixture, and dies with it, is the test's.
        """
        owned = self._owned.pop(fixture, {})
        if not self._levels:
            return
        freed = _less(self._levels.pop().before, self.read(brief=True))
        for key, size in owned.items():
            self._others[key] = self._others.get(key, 0) - max(min(size, freed.get(key, 0)), 0)

    def end(self, *, brief: bool = False) -> Growth:
        """What the run that began last has added up to now.

        Args:
            brief: whether counters that take long to read may be those of a moment ago.
        """
        self._after = self.read(brief=brief)
        growth: dict[Key, int] = {}
        for key, size in self._after.items():
            before = self._before.get(key)
            if before is not None or key[0] != HOST:
                growth[key] = size - (before or 0) - self._others.get(key, 0)
        imported = max(len(sys.modules) - self._modules, 0) * MODULE_BYTES
        if len(self._after) <= len(self._host):
            return Growth(growth, imported=imported)
        devices = {device for device, _ in self._before}
        first_used = frozenset(device for device, _ in self._after if device not in devices and device != HOST)
        reserved = {device: size for (device, metric), size in self._after.items() if metric == "reserved"}
        in_use = {device: size for (device, metric), size in growth.items() if metric == UNACCOUNTED}
        if self._outside is None:
            from pytest_gpuleak.engine.detect.outside_torch import Outside  # most runs use no device

            self._outside = Outside(self._processes)
        for device, size in self._outside.growth(in_use, reserved, first_used).items():
            growth[device, OUTSIDE] = size
        return Growth(growth, first_used, imported)

    def record(self, peaks: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """The counters before and after the run, as the report has them.

        Args:
            peaks: by device, the most bytes allocated at once during the run.
        """
        found: dict[str, dict[str, int]] = {}
        for key, size in self._after.items():
            device, metric = key
            if metric not in UNRECORDED:
                before, after = _names_of(metric)
                counters = found.setdefault(device, {})
                counters[before] = self._before.get(key, 0)
                counters[after] = size
        for device, peak in peaks.items():
            if device in found:
                found[device]["peak"] = peak
        return found

    def begin_record(self) -> None:
        """A re-run is about to begin that is to be explained. To be called with the whole heap in view."""
        # Here, since what walks the heap takes milliseconds to load.
        from pytest_gpuleak.explain.large_objects import recorder_of

        self._recording = []
        for probe in list(self._host):
            try:
                recorder = recorder_of(probe)
                recorder.begin_record()
                self._recording.append((probe, recorder))
            except Exception as error:  # noqa: BLE001 - as in `read`
                self._drop(probe, f"failed: {type(error).__name__}: {error}")

    def end_record(self) -> dict[str, HostGrowth]:
        """The re-run is over: what it added, by the probe's name."""
        found: dict[str, HostGrowth] = {}
        for probe, recorder in self._recording:
            try:
                found[probe.name] = recorder.end_record()
            except Exception as error:  # noqa: BLE001 - as in `read`
                self._drop(probe, f"failed: {type(error).__name__}: {error}")
        self._recording = []
        return found

    def read(self, *, brief: bool = False, host: Mapping[Key, int] = NOTHING) -> dict[Key, int]:
        """Every counter, now, or for a brief look a moment ago where it takes long to read. Never raises.

        Args:
            brief: see `end`.
            host: readings of the host that still hold.
        """
        found: dict[Key, int] = {}
        for probe in tuple(self._devices):
            try:
                readings = probe.read()
            except Exception as error:  # noqa: BLE001 - a device may be lost in the midst of a run, which goes on
                self._drop(probe, f"failed: {type(error).__name__}: {error}")
                continue
            for device, reading in readings.items():
                if (device, COUNTED[0]) in found:
                    self.tell(f"{device} of {probe.name} not watched: another framework counts its memory too")
                    continue
                found.update(_counters(device, reading))
                self._read_use(probe, device, reading, found)
            for device, why in probe.absent.items():
                self.tell(f"{device} not watched: {why}")
        for one in tuple(self._host):
            key = HOST, one.name
            try:
                found[key] = host[key] if key in host else one.read_briefly() if brief else one.read()
            except Exception as error:  # noqa: BLE001 - as above
                self._drop(one, f"failed: {type(error).__name__}: {error}")
        return found

    def _read_use(self, probe: DeviceProbe, device: str, reading: DeviceReading, found: dict[Key, int]) -> None:
        """Note what is in use on a device beyond torch's own, as long as asking costs little."""
        if reading.reserved is None or self._use_calls < 0:
            return
        began = perf_counter()
        with suppress(Exception):  # a driver that cannot say: the allocator's figures stand without it
            used = probe.used(device)
            if used is not None:
                found[device, UNACCOUNTED] = used - reading.reserved
        self._use_s = min(self._use_s, perf_counter() - began)
        self._use_calls += 1
        if self._use_calls >= TRIED_CALLS and self._use_s > DEAR_CALL_S:
            self._use_calls = -1
            self.tell(f"memory outside of torch is not watched: asking the driver takes {self._use_s * 1e6:.0f} us")

    def tell(self, fault: str) -> None:
        """Add a line on what could not be done, once."""
        if fault not in self.faults:
            self.faults.append(fault)

    def _drop(self, probe: DeviceProbe | HostProbe, what: str, *, failed: bool = True) -> None:
        for probes in (self._devices, self._host):
            if probe in probes:
                probes.remove(probe)  # type: ignore[arg-type]
        with suppress(Exception):
            probe.stop()
        line = f"{probe.name} {' '.join(what.split())}"
        self.faults.append(line)
        if failed:
            self.failures.append(f"the counter {line}")


@cache
def _names_of(metric: str) -> tuple[str, str]:
    """What a counter before and after is called in the report."""
    return f"{metric}_before", f"{metric}_after"


class _Level:
    """A wider fixture's setup or teardown under way: the counters before it, and what others within it added."""

    __slots__ = ("before", "inner")

    def __init__(self, before: dict[Key, int]) -> None:
        self.before = before
        self.inner: dict[Key, int] = {}


def _less(more: Mapping[Key, int], less: Mapping[Key, int]) -> dict[Key, int]:
    """By how much the one exceeds the other; a counter that only one of them has is counted from 0."""
    return {key: more.get(key, 0) - less.get(key, 0) for key in {*more, *less}}


def _counters(device: str, reading: DeviceReading) -> dict[Key, int]:
    values = ((metric, getattr(reading, metric)) for metric in COUNTED)
    return {(device, metric): value for metric, value in values if value is not None}
