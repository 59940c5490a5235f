"""Guard a framework's arrays: what cannot be read is left out, and its test is not called clean."""

from __future__ import annotations

import contextlib
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pytest_gpuleak.adapters import answers
from pytest_gpuleak.adapters.arrays import ALWAYS
from pytest_gpuleak.adapters.late import ArrayHandle
from pytest_gpuleak.adapters.protocol import ArrayFramework

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.protocol import OriginLog, StorageHandle
    from pytest_gpuleak.model.readings import ArrayReading, MemoryRange

    GuardMaker = Callable[[str], AbstractContextManager[Any]]

_T = TypeVar("_T")

METHODS: Final = ("array_type", "storage", "read", "hold", "storage_users", "trace_origins")
"""The methods of `ArrayFramework` that are required."""


class Guarded:
    """Ask the members of another object behind guards.

    `guard` returns a member's context by its name, which ends at an error and notes it.
    """

    def __init__(self, asked: Any, guard: GuardMaker) -> None:
        self._asked = asked
        self._guard = guard

    def _ask(self, member: str, check: Callable[[Any], _T], otherwise: Callable[[], _T], *arguments: object) -> _T:
        """Return a method's answer as `check` accepts it; `otherwise`, where it fails."""
        with self._guard(member):
            return check(getattr(self._asked, member)(*arguments))
        return otherwise()

    @contextlib.contextmanager
    def _entered(self, member: str, *arguments: object) -> Iterator[Any]:
        """Enter the context that a method returns, or yield None where it fails.

        Errors of the body pass, unseen by the context.
        """
        found = context = None
        with self._guard(member):
            made = getattr(self._asked, member)(*arguments)
            found = made.__enter__()
            context = made
        try:
            yield found
        finally:
            if context is not None:
                with self._guard(member):
                    context.__exit__(None, None, None)


def asked(
    member: str, check: Callable[[Any], _T], otherwise: Callable[[], _T], *, optional: bool = False
) -> Callable[..., _T]:
    """Return a method of a `Guarded` that asks the method of this name: see `Guarded._ask`.

    One that is `optional` may be lacking. The lack of any other is a fault, which is told.
    """

    def ask(self: Guarded, *arguments: object) -> _T:
        if optional and getattr(self._asked, member, None) is None:
            return otherwise()
        return self._ask(member, check, otherwise, *arguments)

    return ask


def _of_all(member: str, of_one: str) -> Callable[..., list[Any]]:
    """Return a method that asks for all arrays at once; one by one, behind guards, where that fails or it is not the plugin's."""

    def ask(self: GuardedArrays, arrays: Sequence[object]) -> list[Any]:
        with contextlib.suppress(Exception):
            if self.is_ours:
                found: list[Any] = getattr(self._asked, member)(arrays)
                return found
        return list(map(getattr(self, of_one), arrays))

    return ask


class GuardedArrays(Guarded, ArrayFramework):
    """One framework's arrays behind guards."""

    needs = ALWAYS

    def __init__(self, framework: ArrayFramework, name: str, guard: GuardMaker) -> None:
        super().__init__(framework, guard)
        self.name = name
        # The plugin's own adapters return right values or raise, and their handles never raise: no check needed.
        self.is_ours = type(framework).__module__.startswith(f"{__package__}.")

    array_type = asked("array_type", answers.class_of_arrays, NoneType)
    storage_users = asked("storage_users", answers.whole_or_none, NoneType)
    creation_lines = asked("creation_lines", answers.lines, dict, optional=True)
    parts = asked("parts", answers.ids, set, optional=True)

    def storage(self, array: object) -> int:
        """Return the storage key; where the framework fails, the array's id, as of memory that it does not share."""
        return self._ask("storage", answers.whole, lambda: id(array), array)

    def read(self, array: object) -> ArrayReading | None:
        """Return the checked metadata; None where the framework fails."""
        return self._ask("read", lambda reading: answers.reading_of(array, reading), NoneType, array)

    def hold(self, array: object) -> StorageHandle:
        """Return a weak handle on the memory; where the framework fails, on the array itself."""
        with self._guard("hold"):
            return _GuardedHandle(self._asked.hold(array), self._guard)
        return ArrayHandle(id(array), array)

    def memory(self, array: object) -> MemoryRange | None:
        """Return where the array's memory is; None unless it is an array of the plugin's own frameworks."""
        if not self.is_ours:
            return None
        with contextlib.suppress(Exception):
            found: MemoryRange | None = self._asked.memory(array)
            return found
        return None

    storage_many = _of_all("storage_many", "storage")
    read_many = _of_all("read_many", "read")
    hold_many = _of_all("hold_many", "hold")
    memory_many = _of_all("memory_many", "memory")

    @contextlib.contextmanager
    def trace_origins(self, is_user_file: Callable[[str], bool]) -> Iterator[OriginLog]:
        """Trace creating lines; yield an empty log where the framework fails. Errors of the body pass."""
        with self._entered("trace_origins", is_user_file) as log:
            yield {} if log is None else log


class _GuardedHandle:
    __slots__ = ("_guard", "_handle", "storage")

    def __init__(self, handle: StorageHandle, guard: GuardMaker) -> None:
        self.storage = answers.whole(handle.storage, "a handle whose storage is a number")
        self._handle = handle
        self._guard = guard

    def alive(self) -> bool:
        with self._guard("hold(...).alive"):
            return bool(self._handle.alive())
        return False
