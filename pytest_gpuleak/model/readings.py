"""Counters: what the allocators, the driver and the operating system say is in use."""

OUTSIDE = "outside"
"""The name of the counter of a process's memory on a device beyond torch's allocator."""

OUTSIDE_FLOOR = 2 * 1024 * 1024
"""Bytes from which its growth means anything: the driver hands out memory in pages of 2 MiB."""


class ProbeUnavailable(Exception):  # noqa: N818 - a state to be told in the header, no error
    """A probe cannot read anything here; its text says why, in a few words for the run's header."""
