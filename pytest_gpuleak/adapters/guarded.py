"""A framework whose faults cost what they touch and no more: for what a conftest.py brings, and for suspects for all.

An array that cannot be read is left out, and the fault is noted, so that its test is not called clean. What a method
returns is checked, since a wrong type would only show later, far from whoever returned it.
"""

from __future__ import annotations

import contextlib
import operator
import weakref
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.bulk import hold_many, read_many
from pytest_gpuleak.heap.classes import is_kind_of
from pytest_gpuleak.model.readings import ArrayReading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.protocol import ArrayFramework, OriginLog, StorageHandle

    GuardMaker = Callable[[str], AbstractContextManager[Any]]

METHODS = ("array_type", "storage", "read", "hold", "storage_users", "trace_origins")
"""The methods that a framework must have (`ArrayFramework`)."""


class WrongAnswer(TypeError):  # noqa: N818 - told by its message: what was returned, and what is accepted
    """A framework's method returned something that is not accepted."""


def missing_methods(framework: object) -> list[str]:
    """List the methods of `ArrayFramework` that an object does not have."""
    return [name for name in METHODS if not callable(getattr(framework, name, None))]


class GuardedFramework:
    """One framework behind guards.

    Args:
        framework: the framework.
        name: its name, as text.
        guard: gives the context that a method of it is called in, by the method's name; an error ends it and is noted.
    """

    def __init__(self, framework: ArrayFramework, name: str, guard: GuardMaker) -> None:
        self.name = name
        self._framework = framework
        self._guard = guard
        # What we have written ourselves gives right answers or raises, and its handles raise nothing.
        self._is_ours = type(framework).__module__.startswith(f"{__package__}.")

    def array_type(self) -> type | None:
        """See `ArrayFramework`. None where the framework cannot say."""
        with self._guard("array_type"):
            kind: object = self._framework.array_type()
            if kind is None:
                return None
            # `object` would make an array of everything that a test creates.
            if not is_kind_of(type(kind), type) or kind is object:
                raise WrongAnswer(f"returned {_shown(kind)}, accepted are a class of arrays and None")
            return kind  # type: ignore[return-value] # by its metaclass
        return None

    def storage(self, array: object) -> int:
        """See `ArrayFramework`. Where the framework cannot say, the array shares its memory with no other."""
        with self._guard("storage"):
            return _whole(self._framework.storage(array), "a number")
        return id(array)

    def read(self, array: object) -> ArrayReading | None:
        """See `ArrayFramework`. None where the framework cannot say."""
        with self._guard("read"):
            return _checked_or_none(self._framework.read(array), array)
        return None

    def hold(self, array: object) -> StorageHandle:
        """See `ArrayFramework`. Where the framework gives no handle, one on the array itself."""
        with self._guard("hold"):
            return _GuardedHandle(self._framework.hold(array), self._guard)
        return _ArrayHandle(array)

    def read_many(self, arrays: Sequence[object]) -> list[ArrayReading | None]:
        """As `read`, for each; one by one, behind a guard each, only where one of them fails."""
        with contextlib.suppress(Exception):
            if self._is_ours:
                return read_many(self._framework, arrays)
            return [_checked_or_none(self._framework.read(array), array) for array in arrays]
        return [self.read(array) for array in arrays]

    def hold_many(self, arrays: Sequence[object]) -> list[StorageHandle]:
        """As `hold`, for each; one by one, behind a guard each, only where one of them fails."""
        with contextlib.suppress(Exception):
            if self._is_ours:
                return hold_many(self._framework, arrays)
            return [_GuardedHandle(self._framework.hold(array), self._guard) for array in arrays]
        return [self.hold(array) for array in arrays]

    def storage_users(self, array: object) -> int | None:
        """See `ArrayFramework`. None where the framework cannot say."""
        with self._guard("storage_users"):
            users: object = self._framework.storage_users(array)
            return None if users is None else _whole(users, "a number or None")
        return None

    @contextlib.contextmanager
    def trace_origins(self, is_user_file: Callable[[str], bool]) -> Iterator[OriginLog]:
        """See `ArrayFramework`. An empty log where the framework cannot trace.

        What the body raises is the test's own, and passes.
        """
        tracing: Any = None
        log: OriginLog = {}
        with self._guard("trace_origins"):
            entered = self._framework.trace_origins(is_user_file)
            log = entered.__enter__()
            tracing = entered
        try:
            yield log
        finally:
            if tracing is not None:
                with self._guard("trace_origins"):
                    tracing.__exit__(None, None, None)


class _GuardedHandle:
    """A framework's handle, which is asked long after its array has gone."""

    __slots__ = ("_guard", "_handle", "storage")

    def __init__(self, handle: StorageHandle, guard: GuardMaker) -> None:
        self.storage = _whole(handle.storage, "a handle whose storage is a number")
        self._handle = handle
        self._guard = guard

    def alive(self) -> bool:
        with self._guard("hold(...).alive"):
            return bool(self._handle.alive())
        return False


class _ArrayHandle:
    """A weak hold on an array, in place of one on its memory. Not alive where its type has no weak references."""

    __slots__ = ("_array", "storage")

    def __init__(self, array: object) -> None:
        self.storage = id(array)
        self._array: Callable[[], object | None]
        try:
            self._array = weakref.ref(array)
        except TypeError:
            self._array = _nothing

    def alive(self) -> bool:
        return self._array() is not None


def _nothing() -> None:
    return None


def _checked_or_none(reading: object, array: object) -> ArrayReading | None:
    return None if reading is None else _checked(reading, array)


def _checked(reading: Any, array: object) -> ArrayReading:
    """The reading as plain data that refers to nothing of the framework's. Raises WrongAnswer."""
    # By its name: a framework that was loaded before may have its class from another copy of this package's module.
    if type.__dict__["__qualname__"].__get__(type(reading)) != ArrayReading.__qualname__:
        raise WrongAnswer(f"returned {_shown(reading)}, accepted are an ArrayReading and None")
    if type(reading.shape) is not tuple and not is_kind_of(type(reading.shape), tuple):
        raise WrongAnswer(f"returned the shape {_shown(reading.shape)}, accepted is a tuple of sizes")
    for text in (reading.dtype, reading.device):
        if type(text) is not str:
            raise WrongAnswer(f"returned {_shown(text)} as dtype or device, accepted is a text")
    return ArrayReading(
        identity=id(array),
        shape=tuple(_whole(size, "a tuple of sizes") for size in reading.shape),
        dtype=reading.dtype,
        device=reading.device,
        bytes=_whole(reading.bytes, "a number of bytes, 0 or more", least=0),
        storage=_whole(reading.storage, "a number"),
        storage_bytes=_whole(reading.storage_bytes, "a number of bytes, 0 or more", least=0),
    )


def _whole(value: object, accepted: str, least: int | None = None) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type] # what has no index raises
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        raise WrongAnswer(f"returned {_shown(value if number is None else number)}, accepted is {accepted}")
    return number


def _shown(value: object) -> str:
    """A value in an error: numbers and short texts as they are, of all else the type."""
    if value is None or type(value) in (int, float, bool):
        return repr(value)
    if type(value) is str:
        return repr(value[:60])
    if is_kind_of(type(value), type):
        return f"the class {type.__dict__['__name__'].__get__(value)}"
    return f"an object of type {type(value).__name__}"
