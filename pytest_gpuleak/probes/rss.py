"""The resident set: what of the process lies in physical memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.large_objects import LargeObjects
from pytest_gpuleak.probes.protocol import HostGrowth, ProbeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable


class ResidentSetProbe:
    """Growth of the resident set: evidence, never a verdict.

    It sees everything that was touched, whoever allocated it, memory maps included, and it falls late or never: the
    allocators keep what was freed, the operating system takes pages away when it wants to.
    """

    name = "rss"
    judges = False
    floor = 16 * 1024 * 1024

    def __init__(self) -> None:
        self._read: Callable[[], int] | None = None
        self._large = LargeObjects(maps=True)
        self._before = 0

    def start(self) -> None:
        """See `HostProbe.start`."""
        import psutil

        try:
            process = psutil.Process()
            process.memory_info()
        except (psutil.Error, OSError) as error:
            raise ProbeUnavailable(f"psutil cannot read this process: {type(error).__name__}") from error

        def read() -> int:
            return int(process.memory_info().rss)

        self._read = read

    def stop(self) -> None:
        """See `HostProbe.stop`."""
        self._read = None

    def read(self) -> int:
        """Bytes resident, shared pages included."""
        return 0 if self._read is None else self._read()

    def begin_record(self) -> None:
        """Note the large objects and the memory maps; the caller has made the whole heap visible."""
        self._large.begin()
        self._before = self.read()

    def end_record(self) -> HostGrowth:
        """Growth of the resident set, and the large objects and memory maps that are new."""
        grown = self.read() - self._before
        return HostGrowth(grown, self._large.end())
