"""Readings of memory, as plain data: arrays, and the counters of allocators, driver and system."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OUTSIDE = "outside"
"""Name of the counter of a process's device memory outside torch's allocator."""

DISK = "disk"
"""Device of arrays whose memory is a mapped file: the system takes the pages back as it likes."""

OUTSIDE_FLOOR = 2 * 1024 * 1024
"""Smallest growth of `OUTSIDE` that is judged, in bytes: the driver hands out pages of 2 MiB."""


NOT_EVALUATED = ", not evaluated"
"""End of `ArrayReading.dtype` of an array that is `pending`."""


class ProbeUnavailable(Exception):  # noqa: N818 - a state to be told in the header, no error
    """A probe cannot read anything on this machine. The text says why, in a few words for the run's header."""


class ArrayReading(NamedTuple):
    """Metadata of one live array, whose ``id()`` is `identity`. It refers to no user object.

    Attributes:
        bytes: bytes of the elements it shows; `storage_bytes` of the memory behind it.
        storage: key of that memory: equal for arrays that share it, while it lives.
        shards: for memory on several devices, the bytes on each by its name; empty for memory in one place.
        pending: whether the elements are still to be computed. Native code then keeps the inputs of the computation.
        framework: the framework's name where its arrays are not called tensors; else empty.
    """

    identity: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    bytes: int
    storage: int
    storage_bytes: int
    shards: tuple[tuple[str, int], ...] = ()
    pending: bool = False
    framework: str = ""
    file: str = ""

    def places(self) -> tuple[tuple[str, int], ...]:
        """Return the bytes by device as counters include them: parts of the host's memory are one device."""
        return self.shards if self.shards and self.device != "cpu" else ((self.device, self.storage_bytes),)


def bytes_by_device(readings: Iterable[ArrayReading]) -> Counter[str]:
    """Return the bytes of the storages of arrays, by device as counters include them."""
    sizes: Counter[str] = Counter()
    for reading in readings:
        for device, size in reading.places():
            sizes[device] += size
    return sizes


class MemoryRange(NamedTuple):
    """Address and size (bytes) of memory; `borrowed`: known to be owned by an object of another library."""

    start: int
    size: int
    borrowed: bool = False


class DeviceSpace(NamedTuple):
    """What a device has, what its driver would give, and its allocator's largest block, in bytes; None: not told."""

    total: int | None
    free: int | None
    largest_free: int | None


TRACE = "trace"
"""Device of what stands for arrays while a function is traced (`Framework.tracers`): it has no memory."""

HOST = "host"
"""Key of the host's counters, beside the names of devices."""

Key = tuple[str, str]
"""A counter: the device, or `HOST`, and the metric (``allocated``, ``heap``)."""


class Growth(NamedTuple):
    """Bytes that a run added to the counters, without what higher-scoped fixtures added.

    Attributes:
        first_used: devices that were unused before the run.
        imported: host memory (bytes) of the modules that the run imported: they excuse as much of what the first run alone has
            left.
        modules: their names. What they keep in their globals is theirs.
        collected: bytes that collections of the whole heap have freed within the run, by the host's counter. They may have
            been garbage of earlier tests.
        compiled: host memory (bytes) of the programs that a re-run compiled. They are noted and fail nothing.
    """

    bytes: Mapping[Key, int]
    first_used: frozenset[str] = frozenset()
    imported: int = 0
    compiled: int = 0
    modules: tuple[str, ...] = ()
    collected: Mapping[Key, int] = MappingProxyType({})

    def at_most(self) -> Growth:
        """Return the growth as it would be if all that was collected had been garbage of earlier tests."""
        if not self.collected:
            return self
        return self._replace(bytes={key: size + self.collected.get(key, 0) for key, size in self.bytes.items()})

    def plus(self, given_back: Mapping[str, int]) -> Growth:
        """Return the growth without what older arrays gave back meanwhile, by device: it would hide as much of the run's own."""
        if not any(given_back.values()):
            return self
        sizes = dict(self.bytes)
        for device, metric in sizes:
            if device == HOST or metric in ("allocated", "requested"):
                sizes[device, metric] += given_back.get("cpu" if device == HOST else device, 0)
        return self._replace(bytes=sizes)

    def excused(self, confirm: int) -> int:
        """Return the bytes of the host's growth that imports excuse: none where re-runs, which import nothing, decide.

        Excused else, a leak in the test that imports a library first would be missed by that library's size.
        """
        return 0 if confirm else self.imported

    def of(self, device: str) -> int:
        """Return the bytes that a device's allocator handed out, by its most exact counter."""
        requested = self.bytes.get((device, "requested"))
        return self.bytes.get((device, "allocated"), 0) if requested is None else requested

    @property
    def host(self) -> int:
        """Return the growth of the host's counter that grew least, since it carries the least noise; 0 without one."""
        return min((size for (device, _), size in self.bytes.items() if device == HOST), default=0)

    def lowest(self, later: Growth) -> Growth:
        """Return the lower of this and a later reading of the same run: what grew meanwhile is not the test's.

        Where the requested bytes are no longer known, because a stream still uses freed blocks, and are more than what is
        allocated by now, they are left out: a freed workspace would stand for a leak.
        """
        lowest = {key: min(size, later.bytes.get(key, size)) for key, size in self.bytes.items()}
        for device in self.devices:
            key = device, "requested"
            if (
                key in lowest
                and key not in later.bytes
                and lowest.get((device, "allocated"), lowest[key]) < lowest[key]
            ):
                del lowest[key]
        return self._replace(bytes=lowest)

    def without(self, device: str, size: int) -> Growth:
        """Return the growth without `size` bytes that a device's allocator handed out."""
        less = {(device, metric) for metric in ("allocated", "requested")}
        return self._replace(bytes={key: grown - size * (key in less) for key, grown in self.bytes.items()})

    @property
    def devices(self) -> list[str]:
        """Return the names of the devices that were read, sorted."""
        return sorted({device for device, _ in self.bytes if device != HOST})
