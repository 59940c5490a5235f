"""Read JAX's arrays without importing JAX, by their ids: not each tells where its memory is (`memory` unites them)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.jax.lookup import loaded_arrays, loaded_tracers
from pytest_gpuleak.adapters.late_arrays import ArrayHandle, LateArrays

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    from pytest_gpuleak.adapters.protocol import StorageHandle
    from pytest_gpuleak.model.findings import Origin
    from pytest_gpuleak.model.readings import ArrayReading, MemoryRange


class JaxArrays(LateArrays):
    """Reads arrays of a JAX that the tests have imported."""

    name = "jax"
    needs = "jax._src.array"

    def array_type(self) -> type | None:
        """Return ``jaxlib._jax.ArrayImpl``; None until JAX is imported. PRNG keys consist of such arrays."""
        return loaded_arrays()

    def storage(self, array: object) -> int:
        """Return the array's id."""
        return id(array)

    def storage_users(self, array: object) -> int | None:
        """Return 1: each array has a key of its own."""
        del array
        return 1

    def creation_lines(self, arrays: Sequence[object], is_user_file: Callable[[str], bool]) -> Mapping[int, Origin]:
        """Return the user's line that made each array, by id."""
        lines: Mapping[int, Origin] = self.reading.lines_of_arrays(arrays, is_user_file)
        return lines

    def parts(self, arrays: Sequence[object]) -> set[int]:
        """Return the ids of the arrays that are parts of other arrays."""
        from pytest_gpuleak.adapters.jax.parts import find_parts

        return find_parts(arrays)

    @cached_property
    def reading(self) -> ModuleType:
        """Return the module that reads the arrays."""
        from pytest_gpuleak.adapters.jax import reading

        return reading


class JaxTracers(JaxArrays):
    """Reads tracers, which stand for arrays while JAX traces a function, and mean nothing once it has returned."""

    name = "jax tracers"

    def array_type(self) -> type | None:
        """Return ``jax._src.core.Tracer``; None until JAX is imported."""
        return loaded_tracers()

    def read_many(self, arrays: Sequence[object]) -> list[ArrayReading | None]:
        """Return the tracers' metadata: on no device, without memory."""
        return list(map(self.reading.read_tracer, arrays))

    def hold(self, array: object) -> StorageHandle:
        """Return a weak hold on the tracer."""
        return ArrayHandle(id(array), array)

    def creation_lines(self, arrays: Sequence[object], is_user_file: Callable[[str], bool]) -> Mapping[int, Origin]:
        """Return the user's line that made each tracer, with the function that was traced, by id."""
        lines: Mapping[int, Origin] = self.reading.lines_of_tracers(arrays, is_user_file)
        return lines

    def parts(self, arrays: Sequence[object]) -> set[int]:
        """Return none: a tracer makes no tracers of itself."""
        del arrays
        return set()

    def memory(self, array: object) -> MemoryRange | None:
        """Return None: a tracer has no memory."""
        del array
        return None
