"""What the engine needs to know of an array framework: a folder a framework, and its row in `adapters.registry`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpuleak.adapters.probe_protocol import DeviceProbe
    from pytest_gpuleak.heap.hidden_references import Link
    from pytest_gpuleak.heap.referrers import Deadline
    from pytest_gpuleak.model.findings import Autograd, Contribution, Origin
    from pytest_gpuleak.model.readings import ArrayReading, DeviceSpace

OriginLog: TypeAlias = "Mapping[int, Origin]"
"""The creating line by storage key (`ArrayReading.storage`)."""

Restore: TypeAlias = "Callable[[], None]"
"""Puts back what was noted when it was made."""

BACKWARD = 0
"""The key of no storage, under which a log has the line that last ran a backward pass: gradients are made in native code,
where nobody sees them, and become known by the tensor that has them."""

UNTOLD = -1
"""What `ReferenceFinder.owner_counter` returns for an array whose owners its framework cannot count."""


class StoppedError(TimeoutError):
    """Raised into a call that takes too long. Guards let it pass to the caller that set the limit."""


class StorageHandle(Protocol):
    """A weak hold on the memory behind an array, which no code of the user's can notice."""

    storage: int

    def alive(self) -> bool:
        """Whether the memory is still there."""


class ArrayFramework(Protocol):
    """The arrays of one framework.

    No method may import the framework, touch a device, or run code that a user's subclass defines. Two methods are
    optional: `read_many` and `hold_many`, which take a sequence of arrays and return a list (see `adapters.bulk`).
    """

    name: str

    def array_type(self) -> type | None:
        """The base class of the arrays, or None until the tests have imported the framework."""

    def storage(self, array: object) -> int:
        """The key of the memory behind the array: cheap, creates no object."""

    def read(self, array: object) -> ArrayReading | None:
        """The array's metadata; None where it owns no memory (fake, meta, empty, a wrapper of other arrays)."""

    def hold(self, array: object) -> StorageHandle:
        """A weak handle on the memory behind the array."""

    def storage_users(self, array: object) -> int | None:
        """How many arrays and other objects share the memory behind the array, itself included; None if unknown."""

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """While it is entered, note the first user's line on the stack that creates each storage."""


class Rung(Protocol):
    """One way to let memory go."""

    @property
    def collects(self) -> bool:
        """Whether what it frees was garbage that only a collection found: a cycle."""

    def steps(self) -> Iterator[None]:
        """Act; yield after each step that may have freed something."""


class NativeObjects(Protocol):
    """What a framework's native code holds, for the length of one search."""

    def lists(self) -> Sequence[list[Any]]:
        """The lists made here that refer to live objects: the search leaves these references out."""

    def links(
        self,
        wanted: Mapping[int, object],
        unheld: Collection[int],
        known: Collection[tuple[int, int]],
        deadline: Deadline,
    ) -> list[Link]:
        """Find the references to `wanted` that lead through native code.

        Args:
            wanted: objects that native code may hold, by id.
            unheld: ids of objects that nothing visible refers to: from these, no path leads on to a root.
            known: the references that are known already, by the ids of parent and child.
            deadline: when to stop and return what was found so far.
        """


class ReferenceFinder(Protocol):
    """Finds what a framework's native code holds, which the collector does not show."""

    def owner_counter(self) -> Callable[[object], int | None]:
        """Make a function that counts who owns an array in native code, beside the array's Python object.

        All of them together are taken for one reference to that object. The function returns None for what is none of
        the framework's arrays, and `UNTOLD` where nothing can be told.
        """

    def take_census(self, deadline: Deadline) -> NativeObjects | None:
        """Look at the framework's live objects; None where it is not imported."""

    def held_alone(self, arrays: list[Any]) -> set[int]:
        """The ids of those arrays that nothing in Python refers to: native code alone keeps their Python objects.

        Args:
            arrays: live arrays; the list is the only reference to each that does not count.
        """

    def may_close_rings(self, arrays: Sequence[object]) -> bool:
        """Whether a ring of references through native code may keep one of the arrays alive."""

    def root_of(self, value: object) -> str:
        """What native code uses an object for that it alone holds, in words (``hooks of ...``); empty if unknown."""


class AllocationHistory(Protocol):
    """The allocations of a framework's devices, recorded while it is entered. Neither end of it raises."""

    def __enter__(self) -> object: ...

    def __exit__(self, *exception: object) -> None: ...

    def blocks_alive(self, device: str, is_user_file: Callable[[str], bool]) -> tuple[Contribution, ...] | None:
        """The blocks that were allocated during the recording and are alive at its end; None where none was made.

        Args:
            device: the device that is meant (``cuda:0``).
            is_user_file: whether a source file is the user's own.
        """

    def save(self, folder: Path, nodeid: str) -> None:
        """Write the recording for the framework's own viewer, where one was made. Raises OSError."""


class PartsLayout(Protocol):
    """How objects of a framework keep what they are made of: structure that a user does not take apart to free memory.

    Attributes:
        mark: ends the type's label of an edge from such an object to a part of it, as the user reads it.
        names: the attributes that keep the parts, each a dict by the parts' names.
    """

    mark: str
    names: Sequence[str]

    def keeps_parts(self, owner: object) -> bool:
        """Whether an object is of this kind. Told by the names of its classes: nothing is imported."""

    def edge(self, owner: object, name: str) -> str | None:
        """How a part is written that the object keeps under a name (``.weight``, ``[0]``); None: as it is kept."""


class ProcessKinds(Protocol):
    """The child processes that a framework starts for itself."""

    def is_helper(self, command: Sequence[str]) -> bool:
        """Whether a command line is of a process that lives until the interpreter ends by design."""

    def helper_pids(self) -> set[int]:
        """Processes of this kind that share this process's command line."""

    def pool_workers(self) -> Mapping[int, str]:
        """The workers of the framework's pools, by pid, and of what (``DataLoader``)."""


class Framework(Protocol):
    """One framework whose arrays are watched. Derive from it, and override what the framework has.

    No member may import the framework, or touch a device that the tests have not used. What describes the process
    (`package`, `processes`, `parts_layout`, `version`, `device_names`, `nvidia_uuids`) is asked of the plugin's own
    frameworks alone, and not of a conftest.py's.

    Attributes:
        name: as users know it; the key of its version in the report's environment.
        package: the package that it is imported by: what lies there is no code of the user's.
        arrays: reads its arrays.
        storages: reads the objects that stand for the memory itself (``tensor.untyped_storage()``), which count only
            where no array shares it: `read` then returns None, and `storage_users` more than 1. None: there are none.
    """

    name: str
    package: str = ""
    arrays: ArrayFramework
    storages: ArrayFramework | None = None

    @property
    def broken(self) -> str:
        """Why nothing can be checked any more: a walk over the heap could crash the process. Empty while all is well."""
        return ""

    @property
    def devices(self) -> DeviceProbe | None:
        """The counters of its devices: the same object each time; None where it has none."""
        return None

    @property
    def processes(self) -> ProcessKinds | None:
        """The processes that it starts for itself; None: none."""
        return None

    def parts_layout(self) -> PartsLayout | None:
        """How its objects keep what they are made of (layers, parameters); None where a holder's path shows all of it."""
        return None

    def version(self) -> str | None:
        """Its version; None until the tests have imported it."""
        return None

    def device_names(self) -> list[str]:
        """The devices that this process uses, with their models (``cuda:0 NVIDIA H100``)."""
        return []

    def nvidia_uuids(self) -> list[str] | None:
        """The UUIDs of NVIDIA's devices in the framework's order, without prefix; None until it uses one, or untold."""
        return None

    def device_space(self, device: str) -> DeviceSpace | None:
        """What is free on a device that this process uses; None for any other, and where nothing can be told."""
        del device
        return None

    def release_cache(self, kinds: Collection[str]) -> list[str]:
        """Give what the allocators of these kinds of devices (``cuda``) have cached back; return the kinds asked."""
        del kinds
        return []

    def settle_steps(self) -> Sequence[Rung]:
        """What lets device memory go that is no leak: wait for the device, clear workspaces, ... cheapest first."""
        return ()

    def reference_finders(self) -> Sequence[ReferenceFinder]:
        """Who tells what its native code holds."""
        return ()

    def unread_arrays(self, devices: set[str]) -> Mapping[str, list[object]]:
        """Give the arrays that native code alone knew a Python object, and return them by device.

        Args:
            devices: only arrays on these.
        """
        del devices
        return {}

    def graph_size(self, arrays: Sequence[object], budget_s: float) -> Autograd | None:
        """How much the graph that computed the arrays keeps alive beyond them; None where there is none.

        Args:
            arrays: live objects, those of other frameworks among them.
            budget_s: seconds after which the count stops.
        """
        del arrays, budget_s
        return None

    def allocation_history(self) -> AllocationHistory | None:
        """What records the allocations of its devices; None where nothing can."""
        return None

    def keep_states(self) -> Sequence[Restore]:
        """Note the random generators and the settings of the process; each function returned puts one back."""
        return ()

    def in_place(self) -> AbstractContextManager[object]:
        """Within it `sys.modules` has the framework that the tests have imported, whatever they did to it."""
        return nullcontext()

    def is_distributed(self) -> bool:
        """Whether this process is one rank of several, which would wait for each other."""
        return False
