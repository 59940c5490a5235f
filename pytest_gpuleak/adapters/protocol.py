"""What the engine needs to know of an array framework: one small class a framework, one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from pytest_gpuleak.model.findings import Origin
    from pytest_gpuleak.model.readings import ArrayReading

OriginLog: TypeAlias = "Mapping[int, Origin]"
"""The creating line by storage key (`ArrayReading.storage`)."""

BACKWARD = 0
"""The key of no storage, under which a log has the line that last ran a backward pass: gradients are made in native code,
where nobody sees them, and become known by the tensor that has them."""


class StorageHandle(Protocol):
    """A weak hold on the memory behind an array, which no code of the user's can notice."""

    storage: int

    def alive(self) -> bool:
        """Whether the memory is still there."""


class ArrayFramework(Protocol):
    """One framework whose arrays are watched.

    No method may import the framework, touch a device, or run code that a user's subclass defines.
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
