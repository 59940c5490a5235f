"""Read CuPy's arrays without importing CuPy."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.late_arrays import LateArrays
from pytest_gpuleak.adapters.late_class import LateClass

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.cupy.reading import CupyReading
    from pytest_gpuleak.adapters.protocol import OriginLog


class CupyArrays(LateArrays):
    """Reads arrays of a CuPy that the tests have imported."""

    name = "cupy"
    needs = "cupy._core.core"

    def __init__(self) -> None:
        self._class = LateClass(self.needs, "_ndarray_base", "ndarray")

    def array_type(self) -> type | None:
        """Return the C class below ``cupy.ndarray``; None until CuPy is imported."""
        return self._class.get()

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """Note creating lines by a hook of the memory pools."""
        from pytest_gpuleak.adapters.cupy.creation_lines import trace_origins

        return trace_origins(is_user_file)

    @cached_property
    def reading(self) -> CupyReading:
        """Return what reads the arrays."""
        from pytest_gpuleak.adapters.cupy.reading import CupyReading

        return CupyReading(self._class)
