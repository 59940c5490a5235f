"""Ask all frameworks of a run together. `adapters.guarded` limits the faults of each."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.protocol import Framework

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pytest_gpuleak.adapters.probe_protocol import BlockRecorder, DeviceProbe, HostBlocks, PeakRecorder
    from pytest_gpuleak.adapters.protocol import (
        AllocationHistory,
        ArrayFramework,
        FirstUseWatch,
        Restore,
        SettleStep,
        SetupLines,
    )
    from pytest_gpuleak.adapters.reference_protocol import ReferenceFinder
    from pytest_gpuleak.heap.budget import Budget
    from pytest_gpuleak.model.findings import Autograd
    from pytest_gpuleak.model.readings import DeviceSpace

_ASKED_OFTEN: Final = ("broken", "program_count", "node_count", "is_distributed")
"""Members that are asked in each test: of frameworks alone that have them."""


class Frameworks:
    """The frameworks whose arrays are watched. `arrays` are their readers, `storages` those of memory itself."""

    def __init__(self, members: Iterable[Framework]) -> None:
        self.members: list[Framework] = []
        self.arrays: list[ArrayFramework] = []
        self.storages: list[ArrayFramework] = []
        self._asked_often: dict[str, list[Framework]] = {name: [] for name in _ASKED_OFTEN}
        for framework in members:
            self.add(framework)

    def add(self, framework: Framework) -> None:
        """Watch another framework from now on."""
        self.members.append(framework)
        for name, answering in self._asked_often.items():
            if getattr(type(framework), name, None) is not getattr(Framework, name):
                answering.append(framework)
        self.arrays.append(framework.arrays)
        storages = framework.storages
        if storages is not None:
            self.arrays.append(storages)
            self.storages.append(storages)
        tracers = framework.tracers
        if tracers is not None:
            self.arrays.append(tracers)

    @property
    def broken(self) -> str:
        """Return why nothing can be checked any more; empty unless a framework is broken."""
        for framework in self._asked_often["broken"]:
            why = framework.broken
            if why:
                return why
        return ""

    @property
    def devices(self) -> list[DeviceProbe]:
        """Return the device probes of all frameworks."""
        return [probe for framework in self.members if (probe := framework.devices) is not None]

    def device_space(self, device: str) -> DeviceSpace | None:
        """Return the space on a device, from the first framework that knows it."""
        found = (framework.device_space(device) for framework in self.members)
        return next((space for space in found if space is not None), None)

    def release_cache(self, kinds: Collection[str]) -> list[str]:
        """Release the cached memory of these kinds of devices; return the kinds released."""
        return list(dict.fromkeys(kind for framework in self.members for kind in framework.release_cache(kinds)))

    def settle_steps(self) -> list[SettleStep]:
        """Return the settle steps of all frameworks."""
        return [step for framework in self.members for step in framework.settle_steps()]

    def free_workspaces(self) -> None:
        """Free what libraries keep on devices between calls, where a framework can without waiting for a device."""
        for framework in self.members:
            framework.free_workspaces()

    def peak_recorder(self, is_user_file: Callable[[str], bool], device: str | None = None) -> PeakRecorder | None:
        """Return the first framework's recorder of peaks; None where none has one."""
        found = (framework.peak_recorder(is_user_file, device) for framework in self.members)
        return next((recorder for recorder in found if recorder is not None), None)

    @contextlib.contextmanager
    def counted_on_host(self, blocks: HostBlocks, lacks: list[str]) -> Iterator[None]:
        """Count, within the context, what the frameworks allocate on the host beside Python and NumPy."""
        with contextlib.ExitStack() as stack:
            for framework in self.members:
                stack.enter_context(framework.counted_on_host(blocks, lacks))
            yield

    def block_recorder(self) -> BlockRecorder | None:
        """Return the first framework's recorder of blocks; None where none has one."""
        found = (framework.block_recorder() for framework in self.members)
        return next((recorder for recorder in found if recorder is not None), None)

    def pool_growth(self, grown: int) -> int:
        """Return how many of `grown` bytes, by which the heap has just grown, the frameworks' own pools may have taken."""
        return min(grown, sum(framework.pool_growth(grown) for framework in self.members))

    def program_names(self) -> list[str]:
        """Return the names of the compiled programs that all frameworks keep."""
        return [name for framework in self.members for name in framework.program_names()]

    def programs_alive(self) -> int:
        """Return how many compiled programs all frameworks keep."""
        return sum(len(framework.program_names()) for framework in self.members)

    def program_instructions(self, newest: Mapping[str, int]) -> int:
        """Return how many instructions so many of the newest programs of each name have, as far as that is known."""
        return sum(framework.program_instructions(newest) for framework in self.members)

    def program_count(self) -> int:
        """Return how many programs the frameworks keep that can count them quickly."""
        count = 0
        for framework in self._asked_often["program_count"]:  # asked after each test
            count += framework.program_count()
        return count

    def count_programs(self) -> bool:
        """Return whether `program_count` tells of all programs that the frameworks keep."""
        return all(framework.counts_programs() for framework in self.members)

    def node_counts(self) -> list[int | None]:
        """Return numbers that rise with the nodes of autograd graphs that this thread makes; None where they are unknown."""
        return [framework.node_count() for framework in self._asked_often["node_count"]]

    def reference_finders(self) -> list[ReferenceFinder]:
        """Return the reference finders of all frameworks."""
        return [finder for framework in self.members for finder in framework.reference_finders()]

    def unread_arrays(self, devices: set[str]) -> tuple[dict[str, list[object]], set[str]]:
        """Return the arrays that only native code knew, by device, and the devices on which some could not be read."""
        found: dict[str, list[object]] = {device: [] for device in devices}
        not_read: set[str] = set()
        for framework in self.members:
            for device, arrays in framework.unread_arrays(devices).items():
                if arrays is None:
                    not_read.add(device)
                else:
                    found[device] += arrays
        return found, not_read

    def library_states(self, device: str) -> list[int]:
        """Return the bytes of what libraries keep on a device for the whole process, where a framework knows it."""
        return [size for framework in self.members for size in framework.library_states(device)]

    def graph_size(self, arrays: Sequence[object], budget: Budget) -> Autograd | None:
        """Return the graph size from the first framework that finds a graph behind one of the arrays."""
        found = (framework.graph_size(arrays, budget) for framework in self.members)
        return next((size for size in found if size is not None), None)

    def allocation_histories(self) -> list[AllocationHistory]:
        """Return the recorders of all frameworks that can record allocations."""
        found = (framework.allocation_history() for framework in self.members)
        return [history for history in found if history is not None]

    def setup_lines(self) -> list[SetupLines]:
        """Return what notes the creating lines of fixtures' arrays."""
        return [lines for framework in self.members if (lines := framework.setup_lines) is not None]

    def keep_states(self) -> list[Restore]:
        """Note the states of all frameworks; return the functions that restore them."""
        return [restore for framework in self.members for restore in framework.keep_states()]

    def keep_values(self, roots: Callable[[], Mapping[str, object]]) -> list[Restore]:
        """Note the content of models that tests share, of all frameworks; return the functions that restore it."""
        return [restore for framework in self.members for restore in framework.keep_values(roots)]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Enter `Framework.in_place` of all frameworks."""
        with contextlib.ExitStack() as stack:
            for framework in self.members:
                stack.enter_context(framework.in_place())
            yield

    def watch_first_use(self, tell: Callable[[str, str], object]) -> list[FirstUseWatch]:
        """Watch for the first initialisation of a device by any framework."""
        found = (framework.watch_first_use(tell) for framework in self.members)
        return [watch for watch in found if watch is not None]

    def is_distributed(self) -> bool:
        """Return whether any framework runs as one rank of several."""
        return any(framework.is_distributed() for framework in self._asked_often["is_distributed"])
