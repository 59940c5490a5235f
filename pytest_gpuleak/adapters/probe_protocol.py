"""Define what the engine needs from a counter of memory. All sizes are bytes."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from pytest_gpuleak.model.findings import Contribution
    from pytest_gpuleak.model.peak_parts import Peak, PeakPhase

    AroundCall = Callable[[Callable[[], Any]], Any]


class DeviceReading(NamedTuple):
    """One device's memory as its caching allocator counts it, in bytes. None: not counted.

    Attributes:
        allocated: blocks handed out.
        requested: the sizes that were asked for, without the allocator's rounding.
        reserved: memory taken from the driver, handed out or cached.
        active: blocks handed out, or freed while a stream still uses them.
        peak: highest `allocated` since `DeviceProbe.begin_peaks`.
        reserved_peak: highest `reserved` since then.
    """

    allocated: int
    requested: int | None = None
    reserved: int | None = None
    active: int | None = None
    peak: int | None = None
    reserved_peak: int | None = None


def total_of(one: DeviceReading, other: DeviceReading) -> DeviceReading:
    """Add what two allocators have on a device; None where one does not count it.

    Reserved bytes and peaks that are not counted are at least the allocated ones: else a budget would not see them.
    """
    pairs = list(zip(one, other, strict=True))
    sums = [None if a is None or b is None else a + b for a, b in pairs]
    least = (one.allocated, other.allocated)
    for index, name in enumerate(DeviceReading._fields):
        if name in ("reserved", "peak", "reserved_peak") and any(value is not None for value in pairs[index]):
            sums[index] = sum(least[side] if value is None else value for side, value in enumerate(pairs[index]))
    return DeviceReading(*sums)  # type: ignore[arg-type] # allocated bytes are always counted


class DeviceProbe(Protocol):
    """The counters of one framework's devices. Derive from it, and override what the framework counts: at least `read`.

    No method may import the framework, initialise a device, or touch a device that the process has not initialised.

    Attributes:
        idle: whether the last `read` found that no device can have been used yet.
        absent: why devices had no readings in the last `read`, by device type.
        in_heap: whether the C heap holds the memory that is counted as reserved, known from the first reading on. It is
            then left out of the host's counters, so that it is judged once.
        own_allocator: whether the figures are added to those of a framework that was asked before for the same device.
            Else they are left out, since both may be the same.
        tells_use: whether `used` may tell anything.
        needs: the module without which no device can have been used. Until it is imported, the probe is not asked.
    """

    name: str
    idle: bool = True
    in_heap: bool = False
    own_allocator: bool = False
    tells_use: bool = True
    needs: str = "sys"
    absent: Mapping[str, str] = MappingProxyType({})

    def read(self) -> dict[str, DeviceReading]:
        """Return the readings of initialised devices by name (``cuda:0``). An error that it raises ends the probe."""

    def used(self, device: str) -> int | None:
        """Return the bytes of a device that all processes use, by the driver's count; None if unknown."""
        return None

    def why_lost(self, error: Exception) -> str | None:
        """Return what an error of `read` or `used` says, if it means that each later call will raise it too; else None."""
        return None

    def begin_peaks(self) -> None:
        """Restart `DeviceReading.peak`, where one is counted. The peaks that user code sees stay unchanged."""
        return None  # noqa: RET501 - a default, not an abstract method

    def pass_cache_calls(self, around: AroundCall) -> None:
        """Call `around` with each call of user code's that empties the allocator's cache, in its place, until `stop`."""
        return None  # noqa: RET501 - as above

    def stop(self) -> None:
        """Leave the framework as it was found. Safe to call twice."""
        return None  # noqa: RET501 - as above


class HostGrowth(NamedTuple):
    """Growth of the host's memory in a recorded run: bytes, maybe negative, and its largest parts, largest first."""

    bytes: int
    contributions: tuple[Contribution, ...] = ()


class HostProbe(Protocol):
    """One measure of the host's memory. Keeps no user object alive.

    A test over which `read` has grown is run again and judged by a `Recorder`: the probe itself, or for a
    `CounterProbe` a recorder of large objects.

    Attributes:
        name: as in `--gpu-leak-host`; gives ``heap_before`` and ``heap_after`` in the report's ``memory.host``.
        judges: whether its growth fails a test; else growth is evidence and a note.
        floor: the probe's measured noise, in bytes a run: smaller growth means nothing.
        counts_heap: whether it includes what native code takes from ``malloc`` (see `DeviceProbe`).
    """

    name: str
    judges: bool
    floor: int
    counts_heap: bool = False

    def start(self) -> None:
        """Begin to watch the process. Raises ProbeUnavailable where nothing can be read."""

    def stop(self) -> None:
        """Leave the process as it was found. Safe to call twice."""

    def read(self) -> int:
        """Return the bytes in use now."""

    def read_briefly(self, least: Callable[[], int]) -> int:
        """Like `read`, but may return the last reading if the count cannot have grown by `least` bytes since.

        Called after each test.
        """
        return self.read()


class Recorder(Protocol):
    """Measures the growth of a host counter during a re-run, and where it comes from."""

    def begin_record(self) -> None:
        """Prepare for a re-run that begins next; may take a second."""

    def end_record(self) -> HostGrowth:
        """Return the growth of the re-run, which has ended and settled."""


class HostBlocks(Protocol):
    """Takes blocks of the host's memory that a framework's own code allocates, each by a number of the framework's."""

    def add(self, number: int, size: int) -> None:
        """Count a block; one that is known gets a new size."""

    def remove(self, number: int) -> None:
        """Count a block no more. One that is not known is ignored."""


class PeakRecorder(Protocol):
    """Records, within the context, what fills the memory of a framework's devices and its host arrays. No end raises."""

    def __enter__(self) -> object: ...

    def __exit__(self, *exception: object) -> None: ...

    def stage(self, stage: PeakPhase) -> None:
        """Tell which stage of a test runs."""

    def pause(self) -> None:
        """Count what is made from now on as there before: the setup of a fixture that outlives the test."""

    def resume(self) -> None:
        """Record again."""

    def devices(self) -> Sequence[str]:
        """Return the devices on which memory was taken, the one with the highest peak first, the host last."""

    def peak(self, device: str) -> Peak:
        """Return the peak of a device above what was there before; files are absolute."""


class TakenBlocks(NamedTuple):
    """Blocks that a run would take on another device: numbers with sizes where a block begins, with 0 where it ends.

    Attributes:
        least: blocks that it takes for certain.
        most: these, and those in doubt.
        doubts: why blocks are in doubt.
        lacks: what was met that cannot be computed; empty: nothing.
        autocast: whether operators ran in half precision, whose kernels differ more.
    """

    least: Sequence[tuple[int, int]]
    most: Sequence[tuple[int, int]]
    doubts: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    autocast: bool = False


class BlockRecorder(Protocol):
    """Records a test's only run, and changes nothing that it sees. No method raises."""

    def begin(self) -> None:
        """Begin to record."""

    def end(self) -> None:
        """End the record. Safe to call twice."""

    def pause(self) -> None:
        """Record nothing from now on: the setup of a fixture that outlives the test."""

    def resume(self) -> None:
        """Record again."""

    def taken(self) -> TakenBlocks:
        """Return what was taken, after the end."""
