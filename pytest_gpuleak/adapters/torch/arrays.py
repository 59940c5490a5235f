"""Read torch tensors and storages without importing torch (see `lookup`)."""

from __future__ import annotations

import sys
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.arrays import ALWAYS
from pytest_gpuleak.adapters.late_arrays import LateArrays
from pytest_gpuleak.adapters.torch import lookup as torch_lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    from pytest_gpuleak.adapters.protocol import OriginLog, StorageHandle
    from pytest_gpuleak.model.readings import MemoryRange


class TorchArrays(LateArrays):
    """Reads tensors of a torch that the tests have imported."""

    name = "torch"
    needs = ALWAYS

    def array_type(self) -> type | None:
        """Return ``torch._C.TensorBase``; None until torch is fully imported, and for a user's stand-in."""
        lookup = torch_lookup.LOOKUP
        if sys.modules.get("torch") is not lookup.module() or (
            lookup.tensor_base is None and len(sys.path_importer_cache) != lookup.folders
        ):
            lookup.refresh()
        return lookup.tensor_base

    def hold_many(self, arrays: Sequence[object]) -> list[StorageHandle]:
        """Return a C++ weak reference for each tensor."""
        handles: list[StorageHandle] = self.reading.hold_many(arrays)
        return handles

    def memory_many(self, arrays: Sequence[object]) -> list[MemoryRange | None]:
        """Return where the memory behind each tensor is."""
        found: list[MemoryRange | None] = self.reading.memory_many(arrays)
        return found

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """Note creating lines by a torch function mode."""
        from pytest_gpuleak.adapters.torch.creation_lines import trace_origins

        return trace_origins(torch_lookup.loaded_torch(), is_user_file)

    @cached_property
    def reading(self) -> ModuleType:
        """Return the module that reads tensors."""
        from pytest_gpuleak.adapters.torch import reading

        return reading


class TorchStorages(LateArrays):
    """Reads storages that outlive their tensors. Lines are noted for tensors, under the same keys."""

    name = "torch storages"
    needs = ALWAYS

    def array_type(self) -> type | None:
        """Return ``torch._C.StorageBase``; None until `TorchArrays.array_type` has found torch."""
        return torch_lookup.LOOKUP.storage_base

    @cached_property
    def reading(self) -> ModuleType:
        """Return the module that reads storages."""
        from pytest_gpuleak.adapters.torch import storages

        return storages
