"""What the probes have in common that read one counter and explain its growth by the large objects that are new."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.adapters.probe_protocol import HostGrowth
    from pytest_gpuleak.explain.large_objects import LargeObjects


class CounterProbe:
    """One counter of the host's memory, once `start` has set what reads it.

    Args:
        maps: whether memory maps are among what the counter sees.
    """

    def __init__(self, *, maps: bool) -> None:
        self._read: Callable[[], int] | None = None
        self._maps = maps
        self._large: LargeObjects | None = None
        self._before = 0

    def stop(self) -> None:
        """See `HostProbe.stop`."""
        self._read = None

    def read(self) -> int:
        """The counter, in bytes; 0 while the probe is stopped."""
        return 0 if self._read is None else self._read()

    def read_briefly(self) -> int:
        """See `HostProbe.read_briefly`."""
        return self.read()

    def begin_record(self) -> None:
        """Note the large objects; the caller has made the whole heap visible."""
        # Here, since what walks the heap takes milliseconds to load, and most runs find nothing.
        from pytest_gpuleak.explain.large_objects import LargeObjects

        self._large = LargeObjects(maps=self._maps)
        self._large.begin()
        self._before = self.read()

    def end_record(self) -> HostGrowth:
        """Growth by the counter, and the large objects that are new."""
        from pytest_gpuleak.adapters.probe_protocol import HostGrowth

        grown = self.read() - self._before
        large, self._large = self._large, None
        return HostGrowth(grown, () if large is None else large.end())
