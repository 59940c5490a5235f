"""An array type without torch, so that the core is tested on every Python: a buffer that knows its size."""

from __future__ import annotations

import contextlib
import itertools
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.arrays import ALWAYS
from pytest_gpuleak.adapters.creation_lines import OriginTable
from pytest_gpuleak.adapters.protocol import ArrayFramework
from pytest_gpuleak.model.readings import ArrayReading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuleak.adapters.protocol import OriginLog, StorageHandle

_addresses = itertools.count(1)
_tables: list[OriginTable] = []


class Memory:
    """What arrays share: a size and an address of its own."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.address = next(_addresses)


class Buffer:
    """An array of bytes on a device."""

    def __init__(self, size: int = 4096, device: str = "cpu", memory: Memory | None = None) -> None:
        self.device = device
        self.memory = Memory(size) if memory is None else memory
        if memory is None:
            for table in _tables:
                table.note(self.memory.address)

    def view(self) -> Buffer:
        """Another array on the same memory."""
        return Buffer(device=self.device, memory=self.memory)


class Handle:
    """A weak hold on a buffer's memory."""

    def __init__(self, memory: Memory) -> None:
        self.storage = memory.address
        self._memory = weakref.ref(memory)

    def alive(self) -> bool:
        """Whether the memory still has an owner."""
        return self._memory() is not None


class StandInArrays(ArrayFramework):
    """The framework that `Buffer` belongs to."""

    name = "standin"
    needs = ALWAYS

    def array_type(self) -> type | None:
        """`Buffer`, once this module is imported under its usual name."""
        return Buffer if __name__ in sys.modules else None

    def storage(self, array: object) -> int:
        """The memory's address."""
        assert isinstance(array, Buffer)
        return array.memory.address

    def read(self, array: object) -> ArrayReading | None:
        """The buffer's metadata; None for an empty one."""
        assert isinstance(array, Buffer)
        size = array.memory.size
        if not size:
            return None
        return ArrayReading(id(array), (size,), "uint8", array.device, size, array.memory.address, size)

    def storage_users(self, array: object) -> int | None:
        """Unknown."""
        return None

    def hold(self, array: object) -> StorageHandle:
        """A weak hold on its memory."""
        assert isinstance(array, Buffer)
        return Handle(array.memory)

    @contextlib.contextmanager
    def trace_origins(self, is_user_file: Callable[[str], bool]) -> Iterator[OriginLog]:
        """Notes the line that makes each memory."""
        own = str(Path(__file__).parent)
        table = OriginTable(lambda path: is_user_file(path) and not path.startswith(own))
        _tables.append(table)
        try:
            yield table
        finally:
            _tables.remove(table)
