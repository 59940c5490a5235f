"""What the probes have in common that read one counter and cannot tell by themselves what made it grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class CounterProbe:
    """One counter of the host's memory, once `start` has set what reads it.

    Args:
        maps: whether memory maps are among what the counter sees.
    """

    def __init__(self, *, maps: bool) -> None:
        self.maps = maps
        self._read: Callable[[], int] | None = None

    def stop(self) -> None:
        """See `HostProbe.stop`."""
        self._read = None

    def read(self) -> int:
        """The counter, in bytes; 0 while the probe is stopped."""
        return 0 if self._read is None else self._read()

    def read_briefly(self) -> int:
        """See `HostProbe.read_briefly`."""
        return self.read()
