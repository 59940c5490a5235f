"""What is read of memory, as plain data: arrays, and what the allocators, the driver and the system say is in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

OUTSIDE = "outside"
"""The name of the counter of a process's memory on a device beyond torch's allocator."""

OUTSIDE_FLOOR = 2 * 1024 * 1024
"""Bytes from which its growth means anything: the driver hands out memory in pages of 2 MiB."""


class ProbeUnavailable(Exception):  # noqa: N818 - a state to be told in the header, no error
    """A probe cannot read anything here; its text says why, in a few words for the run's header."""


class ArrayReading(NamedTuple):
    """Plain metadata of one live array; it refers to nothing of the user's.

    Attributes:
        identity: ``id()`` of the array, meaningful while it lives.
        shape: sizes of the dimensions.
        dtype: element type without the framework's prefix.
        device: ``cpu``, ``cuda:0``, ...
        bytes: bytes of the elements it shows.
        storage: key of the memory behind it: equal for arrays that share it, while it lives.
        storage_bytes: bytes of that memory.
    """

    identity: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    bytes: int
    storage: int
    storage_bytes: int


class DeviceSpace(NamedTuple):
    """What is free on a device, in bytes; None where it is not told.

    Attributes:
        total: all that the device has.
        free: what its driver would give.
        largest_free: the largest free block that the allocator has cached.
    """

    total: int | None
    free: int | None
    largest_free: int | None


HOST = "host"
"""The name that the host's counters stand under, beside the devices."""

Key = tuple[str, str]
"""A counter: the device, or `HOST`, and what is counted there (``allocated``, ``heap``)."""


class Growth(NamedTuple):
    """What a run has added to the counters.

    Attributes:
        bytes: by counter; what wider fixtures added meanwhile is left out.
        first_used: devices that nobody had used before the run.
        imported: bytes of the host's memory that the modules take which the run imported. A growth of no more is no
            reason to run a test again: a first import would cost each suite seconds.
    """

    bytes: Mapping[Key, int]
    first_used: frozenset[str] = frozenset()
    imported: int = 0

    def of(self, device: str) -> int:
        """Bytes that a device's allocator has handed out in addition, as exactly as it counts them."""
        requested = self.bytes.get((device, "requested"))
        return self.bytes.get((device, "allocated"), 0) if requested is None else requested

    @property
    def devices(self) -> list[str]:
        """The devices that were read, by name."""
        return sorted({device for device, _ in self.bytes if device != HOST})
