"""Define what the engine needs from a counter of memory. All sizes are bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuleak.model.findings import Contribution


class DeviceReading(NamedTuple):
    """One device's memory as its caching allocator counts it, in bytes. None: not counted.

    `allocated` are blocks handed out; `requested` their sizes without rounding; `reserved` memory taken from the
    driver; `active` blocks handed out or still used by a stream; the peaks the highest since `DeviceProbe.begin_peaks`.
    """

    allocated: int
    requested: int | None = None
    reserved: int | None = None
    active: int | None = None
    peak: int | None = None
    reserved_peak: int | None = None


def total_of(one: DeviceReading, other: DeviceReading) -> DeviceReading:
    """Add two allocators' figures: unknown if one is, but uncounted reserves and peaks are at least the allocated."""
    pairs = list(zip(one, other, strict=True))
    sums = [None if a is None or b is None else a + b for a, b in pairs]
    least = (one.allocated, other.allocated)
    for index, name in enumerate(DeviceReading._fields):
        if name in ("reserved", "peak", "reserved_peak") and any(value is not None for value in pairs[index]):
            sums[index] = sum(least[side] if value is None else value for side, value in enumerate(pairs[index]))
    return DeviceReading(*sums)  # type: ignore[arg-type] # allocated bytes are always counted


class DeviceProbe(Protocol):
    """The counters of one framework's devices.

    No method may import the framework, or initialise or touch an uninitialised device. Four attributes are optional.
    `in_heap`: the C heap holds the reserved memory, which the host's counters then leave out. `own_allocator`: the
    figures are added to those of another framework for the same device; else they are left out. `tells_use`: whether
    `used` may tell anything. `needs`: the module without which no device can have been used: until it is imported, the
    probe is not asked.
    """

    name: str
    idle: bool
    """Whether the last `read` found that no device can have been used yet."""

    @property
    def absent(self) -> Mapping[str, str]:
        """Return why devices had no readings in the last `read`, by device type."""

    def read(self) -> dict[str, DeviceReading]:
        """Return the readings of initialised devices by name (``cuda:0``). An error that it raises ends the probe."""

    def used(self, device: str) -> int | None:
        """Return the bytes of a device that all processes use, by the driver's count; None if unknown."""

    def begin_peaks(self) -> None:
        """Restart `DeviceReading.peak`, where it is counted. The peaks that user code sees stay unchanged."""

    def stop(self) -> None:
        """Leave the framework as it was found. Safe to call twice."""


class HostGrowth(NamedTuple):
    """Growth of the host's memory in a recorded run: bytes, maybe negative, and its largest parts, largest first."""

    bytes: int
    contributions: tuple[Contribution, ...] = ()


class HostProbe(Protocol):
    """One measure of the host's memory. Keeps no user object alive.

    A test over which `read` has grown is run again and judged by a `Recorder`: the probe, or for a `CounterProbe` a
    recorder of large objects. `name` is as in `--gpu-leak-host`; `judges`: whether its growth fails a test; `floor`:
    its measured noise in bytes a run. Optional: `counts_heap`, whether it includes ``malloc``'s memory; `fresh`, False
    where `read_briefly` has just returned an older reading.
    """

    name: str
    judges: bool
    floor: int

    def start(self) -> None:
        """Begin to watch the process. Raises ProbeUnavailable where nothing can be read."""

    def stop(self) -> None:
        """Leave the process as it was found. Safe to call twice."""

    def read(self) -> int:
        """Return the bytes in use now."""

    def read_briefly(self) -> int:
        """Like `read`, but may return a recent reading if reading is expensive. Called after each test."""
        return self.read()


class Recorder(Protocol):
    """Measures the growth of a host counter during a re-run, and where it comes from."""

    def begin_record(self) -> None:
        """Prepare for a re-run that begins next; may take a second."""

    def end_record(self) -> HostGrowth:
        """Return the growth of the re-run, which has ended and settled."""
