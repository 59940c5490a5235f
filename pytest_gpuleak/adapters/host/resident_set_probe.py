"""Measure the resident set: the part of the process in physical memory."""

from __future__ import annotations

from pytest_gpuleak.adapters.dependencies import dependency_in_place, import_dependency
from pytest_gpuleak.adapters.host.counter_probe import CounterProbe
from pytest_gpuleak.model.readings import ProbeUnavailable


class ResidentSetProbe(CounterProbe):
    """Growth of the resident set, freed pages included: evidence, never a verdict, since it falls late or never."""

    name = "rss"
    judges = False
    floor = 16 * 1024 * 1024

    def __init__(self) -> None:
        super().__init__(maps=True)

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
