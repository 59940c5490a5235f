"""Define what the engine needs from an array framework: a folder for each, and a row in `adapters.registry`."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpuleak.adapters.probe_protocol import BlockRecorder, DeviceProbe, HostBlocks, PeakRecorder
    from pytest_gpuleak.adapters.reference_protocol import PartsLayout, ReferenceFinder
    from pytest_gpuleak.heap.budget import Budget
    from pytest_gpuleak.model.findings import Autograd, Contribution
    from pytest_gpuleak.model.readings import ArrayReading, DeviceSpace, MemoryRange
    from pytest_gpuleak.model.source_files import Origin


OriginLog: TypeAlias = "Mapping[int, Origin]"
"""The creating line by storage key (`ArrayReading.storage`)."""

Restore: TypeAlias = "Callable[[], None]"
"""Restores the state that was noted when the function was created."""

BACKWARD = 0
"""Log key, of no storage, for the line that last ran a backward pass: gradients have no line of their own."""


class StoppedError(TimeoutError):
    """Raised into a call that takes too long. Guards pass it on to the caller that set the limit."""


class StorageHandle(Protocol):
    """A weak hold on the memory behind an array, invisible to user code."""

    storage: int

    def alive(self) -> bool:
        """Return whether the memory still exists."""


class ArrayFramework(Protocol):
    """The arrays of one framework. No method may import it, touch a device, or run code that a user's subclass defines.

    The first six methods are required. Derive from this class and the others need not be written; those of a conftest.py
    that are not derived from it have none of them (`adapters.guarded`).

    Attributes:
        needs: the module without which no array can exist; readers of conftest.py files need none. Until it is imported,
            `array_type` is not asked; `adapters.arrays.array_types` sets it to `ALWAYS` once there is a class, which
            outlives its module.
    """

    name: str
    needs: str

    def array_type(self) -> type | None:
        """Return the base class of the arrays, or None until the tests have imported the framework."""

    def storage(self, array: object) -> int:
        """Return the key of the memory behind the array. Cheap; creates no object."""

    def read(self, array: object) -> ArrayReading | None:
        """Return the metadata; None if the array owns no memory (fake, meta, empty, a wrapper of other arrays)."""

    def hold(self, array: object) -> StorageHandle:
        """Return a weak handle on the memory behind the array."""

    def storage_users(self, array: object) -> int | None:
        """Return how many objects share the memory behind the array, itself included; None if unknown."""

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """Note, within the context, the innermost user line that creates each storage."""

    def storage_many(self, arrays: Sequence[object]) -> list[int]:
        """Return the key of the memory behind each array."""
        return [self.storage(array) for array in arrays]

    def read_many(self, arrays: Sequence[object]) -> list[ArrayReading | None]:
        """Return the metadata of each array."""
        return [self.read(array) for array in arrays]

    def hold_many(self, arrays: Sequence[object]) -> list[StorageHandle]:
        """Return a weak handle on the memory behind each array."""
        return [self.hold(array) for array in arrays]

    def memory(self, array: object) -> MemoryRange | None:
        """Return where the array's memory is, by which arrays that share some are recognised; None if unknown."""
        return None

    def memory_many(self, arrays: Sequence[object]) -> list[MemoryRange | None]:
        """Return for each array what `memory` returns."""
        found: list[MemoryRange | None] = []
        for array in arrays:
            memory = None
            with suppress(Exception):  # arrays whose memory is unknown are taken for arrays of their own
                memory = self.memory(array)
            found.append(memory)
        return found

    def creation_lines(self, arrays: Sequence[object], is_user_file: Callable[[str], bool]) -> Mapping[int, Origin]:
        """Return the user's lines that the arrays themselves know, by id: they are told without a re-run."""
        return {}

    def parts(self, arrays: Sequence[object]) -> set[int]:
        """Return the ids of the arrays that others have made of themselves and keep in native code: they do not count.

        It may walk the heap.
        """
        return set()


class SettleStep(Protocol):
    """Frees memory that is not a leak."""

    @property
    def collects(self) -> bool:
        """Return whether the freed memory was cyclic garbage, which only a collection finds."""

    def steps(self) -> Iterator[None]:
        """Act; yield after each action that may have freed memory."""


class AllocationHistory(Protocol):
    """Records the allocations of a framework's devices within the context. Neither end raises."""

    @property
    def why_not(self) -> str:
        """Tell why there is no recording; empty where there is one. It may be left out."""

    def __enter__(self) -> object: ...

    def __exit__(self, *exception: object) -> None: ...

    def blocks_alive(self, device: str, is_user_file: Callable[[str], bool]) -> tuple[Contribution, ...] | None:
        """Return a device's blocks allocated while recording and alive at its end; None without a recording."""

    def save(self, folder: Path, nodeid: str) -> None:
        """Write the recording, if there is one, for the framework's own viewer. Raises OSError."""


class SetupLines(Protocol):
    """Notes which lines make memory in the setup of a fixture that outlives a test, which is not run again."""

    def begin(self) -> None:
        """Begin to note, which must be cheap and change nothing that the setup can see."""

    def end(self) -> None:
        """End it: the outermost setup has ended."""

    def lines(self, arrays: Sequence[object], is_user_file: Callable[[str], bool]) -> Mapping[int, Origin]:
        """Return the user's line that made the memory of each living array, by id, where it was noted."""


class ProcessKinds(Protocol):
    """The child processes that a framework starts for itself."""

    def is_helper(self, command: Sequence[str]) -> bool:
        """Return whether a command line is of a process that by design lives until the interpreter ends."""

    def helper_pids(self) -> set[int]:
        """Return the pids of such processes that share this process's command line."""

    def pool_workers(self) -> Mapping[int, str]:
        """Return the workers of the framework's pools: the kind of pool (``DataLoader``) by pid."""


class FirstUseWatch(Protocol):
    """Watches for the first initialisation of a framework's devices."""

    def look(self) -> None:
        """Look at the framework's state once more. Does nothing where it is watched already."""

    def stop(self) -> None:
        """Restore what watching has changed."""


class Framework(Protocol):
    """One framework whose arrays are watched. Derive from it, and override what the framework has.

    No member may import the framework, or touch a device that the tests have not used. Members that describe the
    process (`package`, `processes`, `parts_layout`, `version`, `device_names`, `nvidia_uuids`), and those after
    `is_distributed`, are asked of the plugin's own frameworks alone.

    Attributes:
        name: as users know it; the key of its version in the report's environment.
        package: its import package: files in it are not user code.
        companions: packages built on it whose objects are as much its structure as its own (Keras over TensorFlow).
        arrays: reads its arrays.
        storages: reads the objects that stand for memory itself (``tensor.untyped_storage()``), or None. If an array
            shares the memory, `read` returns None and `storage_users` more than 1: they do not count.
        tracers: reads what stands for arrays while a function is traced, on the device `TRACE`, or None. What outlives
            its trace is noted and fails nothing.
        devices: the probe of its devices, or None.
        cache_packages: packages whose globals cache what user code holds: such a root is named only for want of others.
    """

    name: str
    package: str = ""
    companions: tuple[str, ...] = ()
    arrays: ArrayFramework
    storages: ArrayFramework | None = None
    tracers: ArrayFramework | None = None
    devices: DeviceProbe | None = None
    cache_packages: Sequence[str] = ()

    @property
    def broken(self) -> str:
        """Return why nothing can be checked any more (a heap walk could crash the process); empty if all is well."""
        return ""

    @property
    def processes(self) -> ProcessKinds | None:
        """Return how to tell the processes that it starts for itself; None if it starts none."""
        return None

    def parts_layout(self) -> PartsLayout | None:
        """Return how its objects store their parts (layers, parameters); None to show holders' paths in full."""
        return None

    def version(self) -> str | None:
        """Return its version; None until the tests have imported it."""
        return None

    def device_names(self) -> list[str]:
        """Return the devices that this process uses, with their models (``cuda:0 NVIDIA H100``)."""
        return []

    def nvidia_uuids(self) -> list[str] | None:
        """Return NVIDIA devices' UUIDs without prefix, in the framework's order; None before it has used one."""
        return None

    def device_space(self, device: str) -> DeviceSpace | None:
        """Return the free memory of a device that this process uses; None for any other device, or if unknown."""
        return None

    def release_cache(self, kinds: Collection[str]) -> list[str]:
        """Release memory cached by the allocators of these kinds of devices (``cuda``); return the kinds released."""
        return []

    def settle_steps(self) -> Sequence[SettleStep]:
        """Return the steps that free device memory that is no leak (such as workspaces), cheapest first."""
        return ()

    def program_names(self) -> Sequence[str]:
        """Return the names of the compiled programs that it keeps. A test that adds to them in each run is noted."""
        return ()

    def program_count(self) -> int:
        """Return how many programs it keeps. Asked after each test, so 0 where counting takes more than microseconds."""
        return 0

    def reference_finders(self) -> Sequence[ReferenceFinder]:
        """Return the finders of references in its native code."""
        return ()

    def unread_arrays(self, devices: set[str]) -> Mapping[str, list[object] | None]:
        """Create Python objects for the arrays on these devices that only native code knew; return them by device.

        None stands for arrays that could not all be read: growth of that device is then no leak that fails a test.
        """
        return {}

    def graph_size(self, arrays: Sequence[object], budget: Budget) -> Autograd | None:
        """Return how much the arrays' graph keeps alive beyond them, None without a graph; `cut` if not all was read."""
        return None

    def allocation_history(self) -> AllocationHistory | None:
        """Return a recorder of its devices' allocations; None if it has none."""
        return None

    @property
    def setup_lines(self) -> SetupLines | None:
        """Return what notes the creating lines of a fixture's arrays, always the same object; None if it cannot, or not yet."""
        return None

    def keep_states(self) -> Sequence[Restore]:
        """Note random generators and process settings; return functions that each restore one of them."""
        return ()

    def keep_values(self, roots: Callable[[], Mapping[str, object]]) -> Sequence[Restore]:
        """Note the content of models that several tests share; return functions that restore it.

        `roots` returns by name what the tests share, such as values of fixtures, and is asked again when that is
        restored. The functions must keep no array alive.
        """
        return ()

    def in_place(self) -> AbstractContextManager[object]:
        """Restore, within the context, the imported framework in `sys.modules`, whatever the tests did to it."""
        return nullcontext()

    def is_distributed(self) -> bool:
        """Return whether this process is one rank of several, which would wait for each other."""
        return False

    def free_workspaces(self) -> None:
        """Free what its libraries keep on devices between calls, where that takes no wait for a device."""
        return None  # noqa: RET501 - a default, not an abstract method

    def peak_recorder(self, is_user_file: Callable[[str], bool], device: str | None = None) -> PeakRecorder | None:
        """Return a recorder of what fills a `device` (None: any, and the host); None if it has no such device or recorder."""
        return None

    def counted_on_host(self, blocks: HostBlocks, lacks: list[str]) -> AbstractContextManager[None]:
        """Count, within the context, what it allocates on the host beside Python and NumPy; `lacks` says what is not counted."""
        return nullcontext()

    def block_recorder(self) -> BlockRecorder | None:
        """Return a recorder of the blocks that a run would take on a device; None where one is, or if it has no recorder."""
        return None

    def pool_growth(self, grown: int) -> int:
        """Return how many of `grown` bytes, by which the heap has just grown, its own pool may have taken."""
        return 0

    def node_count(self) -> int | None:
        """Return a number that rises with each node of an autograd graph that this thread makes; None if unknown."""
        return 0

    def counts_programs(self) -> bool:
        """Return whether `program_count` tells of all programs that it keeps: else the heap alone shows what compiles."""
        kind = type(self)
        return kind.program_count is not Framework.program_count or kind.program_names is Framework.program_names

    def program_instructions(self, newest: Mapping[str, int]) -> int:
        """Return how many instructions so many of the newest programs of each name have; 0 where that is unknown."""
        return 0

    def library_states(self, device: str) -> Sequence[int]:
        """Return the bytes of what libraries keep on a device for the whole process, each on its own."""
        return ()

    def watch_first_use(self, tell: Callable[[str, str], object]) -> FirstUseWatch | None:
        """Call `tell` with the library (``torch.cuda``) and the type of device when it first initialises one.

        It is called in the midst of that, on any thread: it must not use the framework. None: the framework cannot tell.
        """
        return None


@dataclasses.dataclass(frozen=True)
class DeviceStep:
    """A `SettleStep` that calls `act`, which raises where it may not act now; `what` says in words what it waits for."""

    act: Callable[[], object]
    what: str = "waiting for the device"
    collects: bool = False

    def steps(self) -> Iterator[None]:
        """Act once."""
        try:
            self.act()
        except Exception:  # noqa: BLE001 - the next reading reports a failed device
            return
        yield
