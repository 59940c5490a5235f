"""Read CuPy's arrays by the descriptors of their C class. Nothing here calls CUDA: an array knows its pointer and size."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.creation_lines import OriginTable
from pytest_gpuleak.adapters.late import ArrayHandle
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.interpreter import getrefcount
from pytest_gpuleak.heap.threads import started_threads
from pytest_gpuleak.model.readings import ArrayReading, MemoryRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpuleak.adapters.late import LateClass
    from pytest_gpuleak.adapters.protocol import OriginLog

_LENT: Final = "DLPackMemory"
"""CuPy's class for memory that ``cupy.from_dlpack`` took from another array (cupy/_core/dlpack.pyx)."""

_BORROWED: Final = "UnownedMemory"
_INTERFACE: Final = "__cuda_array_interface__"
"""The attribute by which another library's array lends its memory (``cupy.asarray(tensor)``)."""

_USERS_OF_OURS: Final = 2
"""References to the memory that asking adds: the variable and the argument of `getrefcount`."""


class CupyReading:
    """Reads arrays of the class that `found` finds."""

    def __init__(self, found: LateClass) -> None:
        self._class = found

    def storage(self, array: object) -> int:
        """Return the address of the memory, which views share; the array's id without an address."""
        memory = self._memory(array)
        return (0 if memory is None else int(memory.ptr)) or id(array)

    def hold(self, array: object) -> ArrayHandle:
        """Return a weak hold on the array: a view keeps the array that it was made of."""
        return ArrayHandle(self.storage(array), array)

    def read_many(self, arrays: Sequence[object]) -> list[ArrayReading | None]:
        """Return the metadata; None for an empty array. Memory that another array lent counts as that array's."""
        return [self._read(array) for array in arrays]

    def storage_users(self, array: object) -> int | None:
        """Return how many pointers share the memory: each array has one."""
        memory = self._memory(array)
        return None if memory is None else getrefcount(memory) - _USERS_OF_OURS

    def memory(self, array: object) -> MemoryRange | None:
        """Return address and bytes of the memory, whoever owns it."""
        memory = self._memory(array)
        if memory is None or not memory.ptr:
            return None
        return MemoryRange(int(memory.ptr), int(memory.size) or int(self._get(array, "nbytes")))

    def _read(self, array: object) -> ArrayReading | None:
        try:
            memory = self._memory(array)
            size = int(self._get(array, "nbytes"))
            if memory is None or not memory.ptr or not size:
                return None
            whole = 0 if _is_lent(memory) else int(memory.size) or size  # memory of the user's may come without a size
            shape = tuple(int(length) for length in self._get(array, "shape"))
            dtype = str(self._get(array, "dtype"))
            device = f"cuda:{int(memory.device_id)}"
            return ArrayReading(id(array), shape, dtype, device, min(size, whole or size), int(memory.ptr), whole)
        except Exception:  # noqa: BLE001 - an array whose memory was taken away: nothing is known of it
            return None

    def _memory(self, array: object) -> Any:
        try:
            return self._get(array, "data").mem
        except Exception:  # noqa: BLE001 - an array that was never initialised has no pointer
            return None

    def _get(self, array: object, name: str) -> Any:
        return getattr(self._class.get(), name).__get__(array)


def _is_lent(memory: Any) -> bool:
    """Return whether another array owns the memory: that array is found on its own."""
    name = safe_access.class_name(type(memory))
    if name != _BORROWED:
        return name == _LENT
    return any(safe_access.find_in_class(type(owner), _INTERFACE) is not None for owner in gc.get_referents(memory))


@contextlib.contextmanager
def trace_origins(is_user_file: Callable[[str], bool]) -> Iterator[OriginLog]:
    """Run the body under a hook of the pools (memory_hook.pyx) that notes each block's line, in new threads too."""
    hook_class: Any = safe_access.loaded_class("cupy.cuda.memory_hook", "MemoryHook")
    if hook_class is None:
        yield {}
        return
    table = OriginTable(is_user_file)
    active = [True]

    class NoteOrigins(hook_class):  # type: ignore[misc] # the class is known at run time alone
        name = "pytest-gpuleak"

        def malloc_postprocess(self, **block: Any) -> None:
            address = block.get("mem_ptr")
            if active and type(address) is int and address:
                table.note(address)

    with NoteOrigins(), started_threads(lambda: NoteOrigins().__enter__()):
        yield table
    active.clear()  # a thread that still runs keeps its hook, which does nothing from here on
