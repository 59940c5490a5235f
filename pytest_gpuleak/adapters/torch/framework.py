"""torch, as the registry has it. What a member needs is loaded with its first call: most tests leave nothing behind."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.protocol import Framework
from pytest_gpuleak.adapters.torch import lookup as torch_lookup
from pytest_gpuleak.adapters.torch.arrays import TorchArrays, TorchStorages

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.protocol import AllocationHistory, ReferenceFinder, Restore, Rung
    from pytest_gpuleak.adapters.torch.devices import TorchDevices
    from pytest_gpuleak.adapters.torch.modules import TorchModules
    from pytest_gpuleak.adapters.torch.processes import TorchProcesses
    from pytest_gpuleak.model.findings import Autograd
    from pytest_gpuleak.model.readings import DeviceSpace


class TorchFramework(Framework):
    """The torch that the tests have imported."""

    name = package = "torch"

    def __init__(self) -> None:
        self.arrays = TorchArrays()
        self.storages = TorchStorages()

    @property
    def broken(self) -> str:
        """See `Framework`: torch was imported a second time."""
        return torch_lookup.LOOKUP.broken

    @cached_property
    def devices(self) -> TorchDevices:
        """See `Framework`."""
        from pytest_gpuleak.adapters.torch.devices import TorchDevices

        return TorchDevices()

    @property
    def processes(self) -> TorchProcesses:
        """See `Framework`."""
        from pytest_gpuleak.adapters.torch.processes import TorchProcesses

        return TorchProcesses()

    def parts_layout(self) -> TorchModules:
        """See `Framework`: `torch.nn.Module`."""
        from pytest_gpuleak.adapters.torch.modules import TorchModules

        return TorchModules()

    def version(self) -> str | None:
        """See `Framework`."""
        return str(getattr(torch_lookup.loaded_torch(), "__version__", "")) or None

    def device_names(self) -> list[str]:
        """See `Framework`."""
        from pytest_gpuleak.adapters.torch.device_facts import device_names

        return device_names()

    def nvidia_uuids(self) -> list[str] | None:
        """See `Framework`."""
        from pytest_gpuleak.adapters.torch.device_facts import nvidia_uuids

        return nvidia_uuids()

    def device_space(self, device: str) -> DeviceSpace | None:
        """See `Framework`."""
        from pytest_gpuleak.adapters.torch.device_facts import device_space

        return device_space(device)

    def release_cache(self, kinds: Collection[str]) -> list[str]:
        """See `Framework`."""
        from pytest_gpuleak.adapters.torch.device_facts import release_cache

        return release_cache(kinds)

    def settle_steps(self) -> Sequence[Rung]:
        """See `Framework`: none of them empties the allocator's cache or initialises anything."""
        from pytest_gpuleak.adapters.torch.settle_steps import device_rungs

        return device_rungs()

    def reference_finders(self) -> Sequence[ReferenceFinder]:
        """See `Framework`."""
        from pytest_gpuleak.adapters.torch.reference_finder import TorchReferences

        return (TorchReferences(),)

    def unread_arrays(self, devices: set[str]) -> Mapping[str, list[object]]:
        """See `Framework`: gradients that were never read."""
        from pytest_gpuleak.adapters.torch.unread_gradients import reveal

        return reveal(devices)

    def graph_size(self, arrays: Sequence[object], budget_s: float) -> Autograd | None:
        """See `Framework`: the autograd graph."""
        from pytest_gpuleak.adapters.torch.graph_size import retained_by_graph

        return retained_by_graph(arrays, budget_s=budget_s)

    def allocation_history(self) -> AllocationHistory:
        """See `Framework`: that of CUDA's caching allocator."""
        from pytest_gpuleak.adapters.torch.allocator_history import RecordedHistory

        return RecordedHistory()

    def keep_states(self) -> Sequence[Restore]:
        """See `Framework`."""
        from pytest_gpuleak.adapters.torch.states import keep_states

        return keep_states()

    def in_place(self) -> AbstractContextManager[None]:
        """See `Framework`."""
        from pytest_gpuleak.adapters.torch.in_place import torch_in_place

        return torch_in_place()

    def is_distributed(self) -> bool:
        """See `Framework`: its default process group is initialised."""
        distributed = torch_lookup.torch_module("torch.distributed")
        return bool(distributed is not None and distributed.is_available() and distributed.is_initialized())
