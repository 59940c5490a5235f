"""Register NumPy: the collector tracks mapped files alone; for arrays on the heap see `UntrackedArrays`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.late import LateClass
from pytest_gpuleak.adapters.protocol import ArrayFramework, Framework
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.adapters.protocol import OriginLog, StorageHandle
    from pytest_gpuleak.model.readings import ArrayReading, MemoryRange


class MappedArrays(ArrayFramework):
    """Reads `numpy.memmap` whose memory is a file's. The descriptors' module is loaded with the first array."""

    name = "numpy.memmap"
    needs = "numpy"

    def __init__(self) -> None:
        self._class = LateClass(self.needs, "memmap")

    def array_type(self) -> type | None:
        """See `ArrayFramework`."""
        return self._class.get()

    def storage(self, array: Any) -> int:
        """See `ArrayFramework`."""
        from pytest_gpuleak.adapters.numpy.memory import Ndarrays

        return id(Ndarrays().source(array)[1])

    def read(self, array: Any) -> ArrayReading | None:
        """See `ArrayFramework`."""
        from pytest_gpuleak.adapters.numpy.memory import Ndarrays
        from pytest_gpuleak.model.readings import DISK

        reading = Ndarrays().describe(array)
        return reading if reading is not None and reading.device == DISK else None

    def hold(self, array: Any) -> StorageHandle:
        """See `ArrayFramework`."""
        from pytest_gpuleak.adapters.numpy.memory import Ndarrays

        return Ndarrays().hold(array)

    def memory(self, array: Any) -> MemoryRange | None:
        """See `ArrayFramework`."""
        from pytest_gpuleak.adapters.buffer_protocol import memory_of

        return memory_of(array)

    def storage_users(self, array: Any) -> int | None:
        """See `ArrayFramework`: views of a map are not counted."""
        return None

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """See `ArrayFramework`: a map's line is not noted."""
        return nullcontext({})


class NumpyFramework(Framework):
    """The numpy that the tests have imported."""

    name = package = "numpy"

    def __init__(self) -> None:
        self.arrays = MappedArrays()

    def version(self) -> str | None:
        """Return numpy's version; None until it is imported."""
        return safe_access.plain_text(safe_access.loaded("numpy", "__version__")) or None
