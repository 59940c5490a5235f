"""Count the host's memory by one number: what malloc has handed out, or the resident set, which cannot tell what made it grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.dependencies import dependency_in_place, import_dependency
from pytest_gpuleak.adapters.host.heap_reader import BoundedReader, heap_reader
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


class HeapProbe(CounterProbe):
    """Growth of the C heap, exact to the byte, and the large objects behind it.

    It sees no arenas of small Python objects (mmap, Objects/obmalloc.c), memory maps and shared memory. `floor`: over
    1,000 clean tests (``benchmarks/host_noise.py``, Linux, glibc, 2 cores, 2026-11-21) the largest growth was 1.08 MiB
    on Python 3.13, a first import; the first import of torch added 93 MiB once.
    """

    name = "heap"
    judges = True
    floor = 2 * 1024 * 1024

    _reader: BoundedReader | None = None

    def start(self) -> None:
        """Find the heap's counter. Raises ProbeUnavailable if there is none."""
        self._reader = BoundedReader(heap_reader())
        self._read = self._reader.read

    def stop(self) -> None:
        """Stop reading and close the reader's file. Safe to call twice."""
        super().stop()
        if self._reader is not None:
            self._reader.close()

    def read_briefly(self, least: Callable[[], int]) -> int:
        """Return the counter, or the last reading if it cannot have grown by `least` since; 0 while the probe is stopped."""
        return 0 if self._read is None or self._reader is None else self._reader.read_briefly(least)
