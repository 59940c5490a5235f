"""Register torch with the plugin. Each member imports its code on the first call: most tests leave nothing behind."""

from __future__ import annotations

import sys
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.arrays import ALWAYS
from pytest_gpuleak.adapters.late import LateArrays
from pytest_gpuleak.adapters.protocol import Framework
from pytest_gpuleak.adapters.torch import lookup as torch_lookup
from pytest_gpuleak.adapters.torch.devices import TorchDevices

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.probe_protocol import BlockRecorder, HostBlocks, PeakRecorder
    from pytest_gpuleak.adapters.protocol import AllocationHistory, OriginLog, Restore, SettleStep, StorageHandle
    from pytest_gpuleak.adapters.reference_protocol import ReferenceFinder
    from pytest_gpuleak.adapters.torch.first_use import TorchFirstUse
    from pytest_gpuleak.adapters.torch.modules import TorchModules
    from pytest_gpuleak.adapters.torch.processes import TorchProcesses
    from pytest_gpuleak.adapters.torch.setup_lines import TorchSetupLines
    from pytest_gpuleak.heap.budget import Budget
    from pytest_gpuleak.model.findings import Autograd
    from pytest_gpuleak.model.readings import DeviceSpace, MemoryRange

_C10D: Final = "torch.distributed.distributed_c10d"


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


class TorchFramework(Framework):
    """The torch that the tests have imported."""

    name = package = "torch"

    def __init__(self) -> None:
        self.arrays = TorchArrays()
        self.storages = TorchStorages()
        self.devices: TorchDevices = TorchDevices()

    @property
    def broken(self) -> str:
        """Return that torch was imported a second time; empty otherwise."""
        return torch_lookup.LOOKUP.broken

    @property
    def processes(self) -> TorchProcesses:
        """Return how to tell the processes that torch starts."""
        from pytest_gpuleak.adapters.torch.processes import TorchProcesses

        return TorchProcesses()

    def parts_layout(self) -> TorchModules:
        """Return how a `torch.nn.Module` stores its parts."""
        from pytest_gpuleak.adapters.torch.modules import TorchModules

        return TorchModules()

    def version(self) -> str | None:
        """Return torch's version; None until it is imported."""
        return str(getattr(torch_lookup.loaded_torch(), "__version__", "")) or None

    def device_names(self) -> list[str]:
        """Return the CUDA devices in use with their models."""
        from pytest_gpuleak.adapters.torch.device_facts import device_names

        return device_names()

    def nvidia_uuids(self) -> list[str] | None:
        """Return the UUIDs of the CUDA devices; None if unknown."""
        from pytest_gpuleak.adapters.torch.device_facts import nvidia_uuids

        return nvidia_uuids()

    def device_space(self, device: str) -> DeviceSpace | None:
        """Return the free memory of a device in use; None if unknown."""
        from pytest_gpuleak.adapters.torch.device_facts import device_space

        return device_space(device)

    def release_cache(self, kinds: Collection[str]) -> list[str]:
        """Empty the caching allocators of these kinds of devices."""
        from pytest_gpuleak.adapters.torch.device_facts import release_cache

        return release_cache(kinds)

    def settle_steps(self) -> Sequence[SettleStep]:
        """Return torch's settle steps: no step empties the allocator's cache or initialises a device."""
        from pytest_gpuleak.adapters.torch.settle_steps import device_steps

        return device_steps()

    def free_workspaces(self) -> None:
        """Free the workspaces that libraries such as cuBLAS keep on devices, without waiting for a device."""
        from pytest_gpuleak.adapters.torch.settle_steps import free_workspaces_now

        free_workspaces_now()

    def peak_recorder(self, is_user_file: Callable[[str], bool], device: str | None = None) -> PeakRecorder | None:
        """Return a recorder by torch's modes; None until torch is imported, and for a device of another framework."""
        from pytest_gpuleak.adapters.torch.peak_mode import record_peak

        return record_peak(is_user_file, device)

    def counted_on_host(self, blocks: HostBlocks, lacks: list[str]) -> AbstractContextManager[None]:
        """Count the storages on the CPU, by a dispatch mode."""
        from pytest_gpuleak.adapters.torch.host_storages import counted_storages

        return counted_storages(blocks, lacks)

    def block_recorder(self) -> BlockRecorder | None:
        """Return a recorder of CUDA's blocks by the CPU's tensors; None until torch is imported, and where a device is."""
        from pytest_gpuleak.adapters.torch.cuda_estimate import record_blocks

        return record_blocks()

    def reference_finders(self) -> Sequence[ReferenceFinder]:
        """Return the finder of references in torch's C++ objects."""
        from pytest_gpuleak.adapters.torch.references import TorchReferences

        return (TorchReferences(),)

    def unread_arrays(self, devices: set[str]) -> Mapping[str, list[object] | None]:
        """Return the gradients that were never read from Python, by device; None where they could not all be read."""
        from pytest_gpuleak.adapters.torch.graph_size import reveal

        return reveal(devices)

    def node_count(self) -> int | None:
        """Return a number that rises with each node of an autograd graph that this thread makes; None if unknown."""
        torch = torch_lookup.loaded_torch()
        if torch is None:
            return 0
        try:
            return int(torch._C._autograd._get_sequence_nr())
        except Exception:  # noqa: BLE001 - a torch without it
            return None

    def library_states(self, device: str) -> list[int]:
        """Return the bytes of what libraries below torch keep on a device for the whole process, each on its own."""
        from pytest_gpuleak.adapters.torch.device_facts import library_states

        return library_states(device)

    def graph_size(self, arrays: Sequence[object], budget: Budget) -> Autograd | None:
        """Return the size of the autograd graph behind the arrays."""
        from pytest_gpuleak.adapters.torch.graph_size import retained_by_graph

        return retained_by_graph(arrays, budget)

    def allocation_history(self) -> AllocationHistory:
        """Return a recorder for CUDA's caching allocator."""
        from pytest_gpuleak.adapters.torch.allocator_history import RecordedHistory

        return RecordedHistory()

    @property
    def setup_lines(self) -> TorchSetupLines | None:
        """Return what has CUDA's allocator note stacks; None until a torch is imported whose allocator tells them."""
        torch = torch_lookup.loaded_torch()
        return (
            None
            if getattr(torch, "_C", None) is None or not hasattr(torch._C, "_cuda_allocationTraceback")
            else self._setup_lines
        )

    @cached_property
    def _setup_lines(self) -> TorchSetupLines:
        from pytest_gpuleak.adapters.torch.setup_lines import TorchSetupLines

        return TorchSetupLines()

    def keep_states(self) -> Sequence[Restore]:
        """Note the generators of CUDA devices, and torch's settings; return functions that restore them."""
        from pytest_gpuleak.adapters.torch.states import keep_states

        return keep_states()

    def keep_values(self, roots: Callable[[], Mapping[str, object]]) -> Sequence[Restore]:
        """Note the content of shared modules, optimizers and tensors; return functions that restore it."""
        from pytest_gpuleak.adapters.torch.shared_models import keep_values

        return keep_values(roots)

    def in_place(self) -> AbstractContextManager[None]:
        """Restore torch in `sys.modules` within the context."""
        from pytest_gpuleak.adapters.torch.states import torch_in_place

        return torch_in_place()

    def watch_first_use(self, tell: Callable[[str, str], object]) -> TorchFirstUse:
        """Watch for the call that initialises CUDA or XPU first."""
        from pytest_gpuleak.adapters.torch.first_use import TorchFirstUse

        return TorchFirstUse(tell)

    def is_distributed(self) -> bool:
        """Return whether the default process group has other ranks, without a call of torch's Python, which a test may count.

        Not where they are threads of this process (``MultiThreadedTestCase``) or do not exist (the backend "fake").
        """
        c10d = sys.modules.get(_C10D)
        world = vars(c10d).get("_world") if type(c10d) is ModuleType else None
        group = getattr(world, "_default_pg", None)
        if world is None or group is None:
            return False
        try:
            known = world.pg_map.get(group)  # the group's backend, and its store
            return int(group.size()) > 1 and not (known and known[0] == "fake")
        except Exception:  # noqa: BLE001 - a group of another kind: it is not known to be alone
            return True
