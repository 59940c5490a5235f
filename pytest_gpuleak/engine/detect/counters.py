"""Read the counters of one process around each test: devices, host, and memory outside of torch."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.probe_protocol import total_of
from pytest_gpuleak.engine.detect.growth_apart import GrowthApart, imported_since
from pytest_gpuleak.engine.limits import MODULE_BYTES
from pytest_gpuleak.model.readings import HOST, OUTSIDE, Growth, Key, ProbeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuleak.adapters.nvml.readings import NvmlReading
    from pytest_gpuleak.adapters.probe_protocol import DeviceProbe, DeviceReading, HostGrowth, HostProbe, Recorder
    from pytest_gpuleak.engine.detect.outside_torch import OutsideTorch


UNACCOUNTED = "unaccounted"
"""Bytes in use on a device beyond what torch has reserved. Other processes change it as well."""

UNRECORDED = ("requested", UNACCOUNTED)
"""Metrics that are compared but not reported."""


class CounterWatch:
    """Read the counters. A probe that fails is not asked again, and `faults` receives a line for it.

    `processes` reads the driver's bytes by device and process, only where more is in use than torch accounts for;
    None: nothing outside torch is told.
    """

    def __init__(
        self,
        device_probes: Sequence[DeviceProbe],
        host_probes: Sequence[HostProbe],
        processes: Callable[[], Mapping[str, NvmlReading]] | None = None,
        faults: list[str] | None = None,
    ) -> None:
        self._devices = list(device_probes)
        self._host = list(host_probes)
        self.faults: list[str] = [] if faults is None else faults
        """One line for each thing that could not be read."""
        self.failures: list[str] = []
        """Lines of `faults` that are failures of the check itself rather than limits of the machine."""
        self._processes = processes
        self._outside: OutsideTorch | None = None
        self._before: dict[Key, int] = {}
        self._after: dict[Key, int] = {}
        self._met: set[str] = set()
        self._unknown: set[Key] = set()
        self.apart = GrowthApart(self)
        """What is not the running test's own growth."""
        self._standing: dict[Key, int] | None = None
        self._in_heap = 0
        self._collecting: list[int] = []
        self.collected: dict[Key, int] = {}
        """Bytes that collections of the whole heap have freed within the run (see `Growth.collected`)."""
        self._recording: list[tuple[HostProbe, Recorder]] = []
        self.has_answered = False
        """Whether a device has told its use, by a call to it, at least once."""
        self.lost: tuple[str, str] | None = None
        """The first device that answers no call any more, and its error; its framework's devices are not asked again."""
        self._modules = 0

    def start(self) -> None:
        """Begin to watch the process, and tell in `faults` what cannot be read here."""
        for probe in list(self._host):
            self._start(probe)

    def _start(self, probe: HostProbe) -> None:
        try:
            probe.start()
        except ProbeUnavailable as why:
            self._drop(probe, f"not watched: {why}", failed=False)
        except Exception as error:  # noqa: BLE001 - an error of a counter costs the run this counter only
            self._drop(probe, f"not watched: {type(error).__name__}: {error}")

    def add_host(self, probe: HostProbe) -> None:
        """Read another probe of the host's memory from now on."""
        self._host.append(probe)
        self._start(probe)

    def add_devices(self, probe: DeviceProbe) -> None:
        """Read another framework's devices from now on."""
        self._devices.append(probe)

    def stop(self) -> None:
        """Restore the process as it was found. May be called twice."""
        probes: list[DeviceProbe | HostProbe] = [*self._devices, *self._host]
        for probe in probes:
            with suppress(Exception):
                probe.stop()

    @property
    def device_probes(self) -> tuple[DeviceProbe, ...]:
        """Return the counters of devices that are read."""
        return tuple(self._devices)

    @property
    def host_probes(self) -> tuple[HostProbe, ...]:
        """Return the host's counters that can be read."""
        return tuple(self._host)

    def begin(self) -> None:
        """Begin a run of a test."""
        self.apart.begin()
        if self._unknown:
            self._unknown = set()
        self.collected = {}
        devices = self.read_devices() if self._standing is None else self._standing
        self._before = {**devices, **self._read_host()}
        self._standing = None
        self._modules = len(sys.modules)
        if len(self._before) > len(self._host):
            self._met.update(device for device, _ in self._before)
        if self._outside is not None:
            self._outside.begin()

    def carry_over(self) -> None:
        """Reuse the devices' readings of `end` as the next test's "before": each is asked once a test.

        Call it after a clean test: memory that a failed test's traceback frees would be credited to the next test. The host
        is always read again: its counter has seen garbage of the last test that has gone since, by which this test's growth
        would be made smaller, or was not read at all (`HostProbe.read_briefly`).
        """
        self._standing = {key: size for key, size in self._after.items() if key[0] != HOST}

    def read_anew(self) -> None:
        """Forget what `carry_over` has kept: memory was waited for, and has gone since."""
        self._standing = None

    @property
    def devices(self) -> frozenset[str]:
        """Return the devices that the last run has used."""
        return frozenset(device for device, _ in self._after if device != HOST)

    def end(self, least: Callable[[], int] | None = None) -> Growth:
        """Return what the last run has added.

        `least` returns the smallest growth of the host that matters, in bytes: a counter that cannot have grown as much since
        its last reading may return that one. Without it each counter is read.
        """
        self._after = self.read(least)
        growth = self.added(self._before, self._after)
        for key in self._unknown:
            growth.pop(key, None)
        for key, size in self.apart.sizes.items():
            if key in growth:
                growth[key] -= size
        modules = imported_since(self._modules)
        imported = max(len(modules) - self.apart.imported, 0) * MODULE_BYTES
        first_used: frozenset[str] = frozenset()
        if len(self._after) > len(self._host):
            if self._after.keys() != self._before.keys():
                devices = {device for device, _ in self._before}
                first_used = frozenset(device for device, _ in self._after) - devices - self._met - {HOST}
            if self.has_answered and self._processes is not None:
                self._add_outside(growth, first_used, self._processes)
        return Growth(growth, first_used, imported, modules=modules, collected=self.collected)

    def growth_in_fixtures(self) -> Growth:
        """Return what the last run may have put into wider fixtures: its growth before their teardowns, as far as these have freed it."""
        before, freed = self.apart.before_teardown or {}, self.apart.freed
        return Growth({key: min(size - self._before.get(key, 0), freed.get(key, 0)) for key, size in before.items()})

    def _add_outside(
        self, growth: dict[Key, int], first_used: frozenset[str], processes: Callable[[], Mapping[str, NvmlReading]]
    ) -> None:
        """Add to a run's growth what the process has more of on each device, beyond torch's allocator."""
        reserved = {device: size for (device, metric), size in self._after.items() if metric == "reserved"}
        in_use = {device: size for (device, metric), size in growth.items() if metric == UNACCOUNTED}
        if in_use:
            if self._outside is None:
                from pytest_gpuleak.engine.detect.outside_torch import OutsideTorch  # most runs use no device

                self._outside = OutsideTorch(processes)
            for device, size in self._outside.growth(in_use, reserved, first_used).items():
                growth[device, OUTSIDE] = size

    def note_collection(self, phase: str) -> None:
        """Note what a collection of the whole heap frees of the host, at its ``start`` and ``stop``."""
        probes = [probe for probe in self._host if probe.counts_heap]
        with suppress(Exception):  # the probe is dropped at its next reading
            sizes = [probe.read() for probe in probes]
            if phase == "start":
                self._collecting = sizes
                return
            for probe, before, after in zip(probes, self._collecting, sizes, strict=True):
                key = HOST, probe.name
                self.collected[key] = self.collected.get(key, 0) + max(before - after, 0)

    def heap_bytes(self) -> int:
        """Return the bytes that ``malloc`` has handed out, by the first counter that includes them; 0 without one."""
        with suppress(Exception):  # the probe is dropped at its next reading
            return next(probe.read() for probe in self._host if probe.counts_heap)
        return 0

    def added(self, before: Mapping[Key, int], after: Mapping[Key, int]) -> dict[Key, int]:
        """Return what was added between two readings. What only one of them has is `_unknown`, and not compared.

        After ``x.record_stream(s); del x``, for example, torch's requested bytes lag behind until the next allocation.
        A device that was never met before was empty.
        """
        added: dict[Key, int] = {}
        for key, size in after.items():
            if key in before:
                added[key] = size - before[key]
            elif key[0] in self._met or key[0] == HOST or any(device == key[0] for device, _ in before):
                self._unknown.add(key)
            else:
                added[key] = size
        if len(added) < len(before):
            self._unknown.update(key for key in before if key not in after)
        return added

    def record(self, peaks: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Return the counters before and after the run as the report has them; `peaks` are bytes by device."""
        found: dict[str, dict[str, int]] = {}
        for key, size in self._after.items():
            device, metric = key
            if metric not in UNRECORDED:
                counters = found.setdefault(device, {})
                counters[f"{metric}_before"] = self._before.get(key, 0)
                counters[f"{metric}_after"] = size
        for device, peak in peaks.items():
            if device in found:
                found[device]["peak"] = peak
        return found

    def begin_record(self) -> None:
        """Begin to record what a re-run adds to the host. The whole heap must be visible."""
        # Imported here: the modules that walk the heap take milliseconds to load.
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
        """End the recording and return the re-run's additions, by the probe's name."""
        found: dict[str, HostGrowth] = {}
        for probe, recorder in self._recording:
            try:
                found[probe.name] = recorder.end_record()
            except Exception as error:  # noqa: BLE001 - as in `read`
                self._drop(probe, f"failed: {type(error).__name__}: {error}")
        self._recording = []
        return found

    def read(self, least: Callable[[], int] | None = None) -> dict[Key, int]:
        """Read every counter. Never raises. For `least` see `end`."""
        return {**self.read_devices(), **self._read_host(least)}

    def _read_host(self, least: Callable[[], int] | None = None) -> dict[Key, int]:
        found: dict[Key, int] = {}
        for one in tuple(self._host):
            key = HOST, one.name
            try:
                found[key] = one.read() if least is None else one.read_briefly(least)
            except Exception as error:  # noqa: BLE001 - a counter that fails costs the run this counter only
                self._drop(one, f"failed: {type(error).__name__}: {error}")
            else:
                if one.counts_heap:
                    found[key] -= self._in_heap  # it is judged as a device's
        return found

    def read_devices(self) -> dict[Key, int]:
        """Read the devices' counters. Never raises."""
        found: dict[Key, int] = {}
        first: dict[str, tuple[DeviceProbe, DeviceReading]] = {}
        self._in_heap = 0
        for probe in tuple(self._devices):
            if probe.needs in sys.modules:
                self._ask(probe, first)
        for device, (probe, reading) in first.items():
            found[device, "allocated"] = reading.allocated
            if reading.requested is not None:
                found[device, "requested"] = reading.requested
            if reading.reserved is not None:
                found[device, "reserved"] = reading.reserved
                if probe.tells_use and self.lost is None:
                    self._read_use(probe, device, reading.reserved, found)
        return found

    def _ask(self, probe: DeviceProbe, first: dict[str, tuple[DeviceProbe, DeviceReading]]) -> None:
        """Add a probe's readings to those of the probes before it."""
        try:
            readings = probe.read()
        except Exception as error:  # noqa: BLE001 - a device may be lost during a run, which goes on
            if self._has_lost(probe, f"a device of {probe.name}", error):
                return
            self._drop(probe, f"failed: {type(error).__name__}: {error}")
            return
        for device, reading in readings.items():
            if device not in first:
                first[device] = probe, reading
            elif probe.own_allocator:
                first[device] = first[device][0], total_of(first[device][1], reading)
            else:
                self.tell(f"{device} of {probe.name} not watched: another framework counts its memory too")
                continue
            if probe.in_heap:
                self._in_heap += reading.allocated if reading.reserved is None else reading.reserved
        for device, why in probe.absent.items():
            self.tell(f"{device} not watched: {why}")

    def _read_use(self, probe: DeviceProbe, device: str, reserved: int, found: dict[Key, int]) -> None:
        """Note what is in use on a device beyond torch's own. The call of the driver takes 10 to 100 us, as a rule."""
        try:
            used = probe.used(device)
            if used is not None:
                found[device, UNACCOUNTED] = used - reserved
                self.has_answered = True
        except Exception as error:  # noqa: BLE001 - a device may be lost during a run; the allocator's figures stand
            if self._has_lost(probe, device, error):
                return
            # The first line alone: torch adds advice.
            first_line = str(error).partition("\n")[0]
            self.tell(
                f"{device} failed, only the allocator's figures are watched: {type(error).__name__}: {first_line}"
            )

    def _has_lost(self, probe: DeviceProbe, device: str, error: Exception) -> bool:
        """Note a device that answers no call any more, and do not ask its framework again."""
        why = probe.why_lost(error)
        if why is None:
            return False
        self.lost = device, why
        self._devices.remove(probe)
        return True

    def tell(self, fault: str) -> None:
        """Add a line to `faults`, once."""
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
