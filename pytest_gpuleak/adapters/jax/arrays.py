"""Read JAX's arrays without importing JAX (see `lookup`); `reading` is loaded by the first read.

Arrays are told apart by their ids: not each one tells where its memory is. Those of a test that share memory are united
afterwards (`memory`).
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.jax.lookup import loaded_arrays, loaded_tracers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    from pytest_gpuleak.adapters.protocol import OriginLog, StorageHandle
    from pytest_gpuleak.model.findings import Origin
    from pytest_gpuleak.model.readings import ArrayReading, MemoryRange


class JaxArrays:
    """Reads arrays of a JAX that the tests have imported."""

    name = "jax"
    needs = "jax._src.array"

    def array_type(self) -> type | None:
        """Return ``jaxlib._jax.ArrayImpl``; None until JAX is imported. PRNG keys consist of such arrays."""
        return loaded_arrays()

    def storage(self, array: object) -> int:
        """Return the array's id."""
        return id(array)

    def read(self, array: object) -> ArrayReading | None:
        """Return an array's metadata; None if it was donated or deleted, or has no memory."""
        reading: ArrayReading | None = self._reading.read_array(array)
        return reading

    def hold(self, array: object) -> StorageHandle:
        """Return a weak hold on the array, which counts as gone once it is donated or deleted."""
        handle: StorageHandle = self._reading.ArrayReference(array)
        return handle

    def memory(self, array: object) -> MemoryRange | None:
        """Return where the memory of an array on one device is; None where asking would wait or make a further array."""
        found: MemoryRange | None = self._reading.memory_of_array(array)
        return found

    def storage_users(self, array: object) -> int | None:
        """Return 1: each array has a key of its own."""
        del array
        return 1

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """Note nothing: an array keeps the stack that it was made on (`creation_lines`)."""
        del is_user_file
        return nullcontext({})

    def creation_lines(self, arrays: Sequence[object], is_user_file: Callable[[str], bool]) -> Mapping[int, Origin]:
        """Return the user's line that made each array, by id."""
        lines: Mapping[int, Origin] = self._reading.lines_of_arrays(arrays, is_user_file)
        return lines

    def parts(self, arrays: Sequence[object]) -> set[int]:
        """Return the ids of the arrays that are parts of other arrays."""
        from pytest_gpuleak.adapters.jax.parts import find_parts

        return find_parts(arrays)

    @cached_property
    def _reading(self) -> ModuleType:
        from pytest_gpuleak.adapters.jax import reading

        return reading


class JaxTracers(JaxArrays):
    """Reads tracers, which stand for arrays while JAX traces a function, and mean nothing once it has returned."""

    name = "jax tracers"

    def array_type(self) -> type | None:
        """Return ``jax._src.core.Tracer``; None until JAX is imported."""
        return loaded_tracers()

    def read(self, array: object) -> ArrayReading | None:
        """Return a tracer's metadata: on no device, without memory."""
        reading: ArrayReading | None = self._reading.read_tracer(array)
        return reading

    def hold(self, array: object) -> StorageHandle:
        """Return a weak hold on the tracer."""
        handle: StorageHandle = self._reading.TracerReference(array)
        return handle

    def creation_lines(self, arrays: Sequence[object], is_user_file: Callable[[str], bool]) -> Mapping[int, Origin]:
        """Return the user's line that made each tracer, with the function that was traced, by id."""
        lines: Mapping[int, Origin] = self._reading.lines_of_tracers(arrays, is_user_file)
        return lines

    def parts(self, arrays: Sequence[object]) -> set[int]:
        """Return none: a tracer makes no tracers of itself."""
        del arrays
        return set()

    def memory(self, array: object) -> MemoryRange | None:
        """Return None: a tracer has no memory."""
        del array
        return None
