"""Count the host's memory by one number that cannot tell what made it grow, such as the resident set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.dependencies import dependency_in_place, import_dependency
from pytest_gpuleak.adapters.probe_protocol import HostProbe
from pytest_gpuleak.model.readings import ProbeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable


class CounterProbe(HostProbe):
    """One counter of the host's memory; `start` sets its reader. `maps`: whether the counter includes memory maps."""

    counts_heap = True
    maps = False
    _read: Callable[[], int] | None = None

    def stop(self) -> None:
        """Stop reading. Safe to call twice."""
        self._read = None

    def read(self) -> int:
        """Return the counter, in bytes; 0 while the probe is stopped."""
        return 0 if self._read is None else self._read()


class ResidentSetProbe(CounterProbe):
    """Growth of the resident set, freed pages included: evidence, never a verdict, since it falls late or never."""

    name = "rss"
    judges = False
    floor = 16 * 1024 * 1024
    maps = True

    def start(self) -> None:
        """Open this process with psutil. Raises ProbeUnavailable if psutil cannot read it."""
        psutil = import_dependency("psutil", required=True)
        try:
            with dependency_in_place("psutil"):
                process = psutil.Process()
                process.memory_info()
        except (psutil.Error, OSError) as error:
            raise ProbeUnavailable(f"psutil cannot read this process: {type(error).__name__}") from error

        def read() -> int:
            with dependency_in_place("psutil"):
                return int(process.memory_info().rss)

        self._read = read
