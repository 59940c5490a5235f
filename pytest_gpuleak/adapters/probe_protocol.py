"""What the engine needs to know of a counter: one small class a probe, one file each. All sizes are bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuleak.model.findings import Contribution


class DeviceReading(NamedTuple):
    """One device's memory as its caching allocator counts it.

    Attributes:
        allocated: bytes of blocks handed out.
        requested: bytes that were asked for, without the allocator's rounding; None where it is not counted.
        reserved: bytes taken from the driver, handed out or cached; None where it is not counted.
        active: bytes handed out or waiting for a stream to be done with them; None where it is not counted.
        peak: most bytes allocated at once since `DeviceProbe.begin_peaks`; None where it is not counted.
        reserved_peak: most bytes reserved at once since then; None where it is not counted.
    """

    allocated: int
    requested: int | None = None
    reserved: int | None = None
    active: int | None = None
    peak: int | None = None
    reserved_peak: int | None = None


class DeviceProbe(Protocol):
    """The counters of one framework's devices.

    No method may import the framework, initialise a device, or touch one that the process has not initialised.
    """

    name: str
    idle: bool
    """Whether the last `read` has found that no device can have been used yet."""

    @property
    def absent(self) -> Mapping[str, str]:
        """Why devices have no readings, by their type, as of the last `read`."""

    def read(self) -> dict[str, DeviceReading]:
        """The devices that this process has initialised, by name (``cuda:0``). Costs tens of microseconds a device.

        Raises whatever the framework raises where a device fails: the engine then goes on without the probe.
        """

    def used(self, device: str) -> int | None:
        """Bytes of a device of the last `read` that are in use by anybody, as the driver says; None where it cannot."""

    def begin_peaks(self) -> None:
        """From here on `DeviceReading.peak` is of what follows. What the user's own code sees stays as it is."""

    def stop(self) -> None:
        """Leave the framework as it was found. Safe to call twice."""


class HostGrowth(NamedTuple):
    """What a recorded run added to the host's memory.

    Attributes:
        bytes: by the probe's own measure; may be negative.
        contributions: the largest parts, largest first; empty where the probe cannot tell.
    """

    bytes: int
    contributions: tuple[Contribution, ...] = ()


class HostProbe(Protocol):
    """One measure of the host's memory.

    A test is a suspect when `read` has grown over it; it is then run again and judged by what a `Recorder` says: the
    probe itself, or for a `CounterProbe` one that looks for large objects. A probe keeps no object of the user's alive.

    Attributes:
        name: as in `--gpu-leak-host`; in the report's ``memory.host`` it stands as ``heap_before``, ``heap_after``.
        judges: whether its growth fails a test; else it is evidence, and a note.
        floor: bytes a run that growth must exceed to mean anything: the probe's noise, as measured.
    """

    name: str
    judges: bool
    floor: int

    def start(self) -> None:
        """Begin to watch the process. Raises ProbeUnavailable where nothing can be read here."""

    def stop(self) -> None:
        """Leave the process as it was found. Safe to call twice."""

    def read(self) -> int:
        """Bytes in use now."""

    def read_briefly(self) -> int:
        """As `read`, called after each test: may say what was read a moment ago where reading takes long."""


class Recorder(Protocol):
    """Tells what a re-run added to a counter of the host's memory, and where."""

    def begin_record(self) -> None:
        """A re-run is about to begin; what is asked here may take a second."""

    def end_record(self) -> HostGrowth:
        """The re-run has ended and settled: what it added, and where."""
