"""Read TensorFlow's eager tensors without importing it (see `lookup`)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.late_arrays import LateArrays
from pytest_gpuleak.adapters.tensorflow.lookup import LOOKUP, OPS

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import ModuleType

    from pytest_gpuleak.adapters.protocol import OriginLog


class TensorFlowArrays(LateArrays):
    """Reads eager tensors. A variable is read through its handle, an eager tensor of the dtype `resource`."""

    name = "tensorflow"
    needs = OPS

    def array_type(self) -> type | None:
        """Return the class of eager tensors; None until TensorFlow is imported."""
        return LOOKUP.tensor_class()

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """Note creating lines by a callback of each eager operation."""
        from pytest_gpuleak.adapters.tensorflow.operations import trace_origins

        return trace_origins(is_user_file)

    @cached_property
    def reading(self) -> ModuleType:
        """Return the module that reads the tensors."""
        from pytest_gpuleak.adapters.tensorflow import reading

        return reading
