"""Share the code of probes that read one counter and cannot tell what made it grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class CounterProbe:
    """One counter of the host's memory; `start` sets its reader. `maps`: whether the counter includes memory maps."""

    counts_heap = True
    """Whether the counter includes what native code takes from ``malloc`` (`DeviceProbe`'s `in_heap`)."""

    def __init__(self, *, maps: bool) -> None:
        self.maps = maps
        self._read: Callable[[], int] | None = None

    def stop(self) -> None:
        """Stop reading. Safe to call twice."""
        self._read = None

    def read(self) -> int:
        """Return the counter, in bytes; 0 while the probe is stopped."""
        return 0 if self._read is None else self._read()

    def read_briefly(self) -> int:
        """Return the counter: reading it is cheap."""
        return self.read()
