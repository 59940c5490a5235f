"""Guard a framework's arrays: what cannot be read is left out, and its test is not called clean."""

from __future__ import annotations

import contextlib
import operator
import weakref
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pytest_gpuleak.adapters.arrays import ALWAYS
from pytest_gpuleak.adapters.bulk import hold_many, memory_many, read_many, storage_many
from pytest_gpuleak.heap.classes import is_kind_of
from pytest_gpuleak.model.readings import ArrayReading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuleak.adapters.protocol import ArrayFramework, OriginLog, StorageHandle
    from pytest_gpuleak.model.findings import Origin
    from pytest_gpuleak.model.readings import MemoryRange

    GuardMaker = Callable[[str], AbstractContextManager[Any]]

_T = TypeVar("_T")

METHODS = ("array_type", "storage", "read", "hold", "storage_users", "trace_origins")
"""The methods of `ArrayFramework` that are required."""


class WrongAnswer(TypeError):  # noqa: N818 - its message gives the value returned and the values accepted
    """Raised when a framework's method returns a value that is not accepted."""


def is_named(value: object, kind: type) -> bool:
    """Return whether a value's class has this class's name: it may come from another copy of this package's module."""
    return bool(type.__dict__["__qualname__"].__get__(type(value)) == kind.__qualname__)


def of_type(value: _T, kind: type) -> _T:
    """Return the value if its type is exactly this type. Raises WrongAnswer for any other."""
    if type(value) is not kind:
        raise WrongAnswer(f"returned {shown(value)}, accepted is a {kind.__name__}")
    return value


def text_of(value: object) -> str:
    """Return the value if it is a `str`. Raises WrongAnswer for any other."""
    if type(value) is not str:
        raise WrongAnswer(f"returned {shown(value)}, accepted is a text")
    return value


def size_of(value: object) -> int:
    """Return a number of bytes or objects. Raises WrongAnswer for any other value and below 0."""
    return whole(value, "a number, 0 or more", least=0)


def size_or_none(value: object) -> int | None:
    """Return a size, or None. Raises WrongAnswer for any other value."""
    return None if value is None else size_of(value)


def of_class(value: Any, kind: type) -> Any:
    """Return the value if its class has this name (`is_named`). Raises WrongAnswer for any other."""
    if not is_named(value, kind):
        raise WrongAnswer(f"returned {shown(value)}, accepted is a {kind.__name__}")
    return value


def whole(value: object, accepted: str, least: int | None = None) -> int:
    """Return a number as an `int`. Raises WrongAnswer for any other value, and for a number below `least`."""
    try:
        number = operator.index(value)  # type: ignore[arg-type] # an object without an index raises
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        raise WrongAnswer(f"returned {shown(value if number is None else number)}, accepted is {accepted}")
    return number


def shown(value: object) -> str:
    """Return a value as text for an error: numbers and short texts as they are, else the type."""
    if value is None or type(value) in (int, float, bool):
        return repr(value)
    if type(value) is str:
        return repr(value[:60])
    if is_kind_of(type(value), type):
        return f"the class {type.__dict__['__name__'].__get__(value)}"
    return f"an object of type {type(value).__name__}"


def complete(value: _T, methods: Sequence[str] = METHODS, error: type[TypeError] = TypeError) -> _T:
    """Return an object that has these methods. Raises `error` for any other."""
    missing = [name for name in methods if not callable(getattr(value, name, None))]
    if missing:
        raise error(f"{type(value).__name__} has no {' and no '.join(missing)}")
    return value


class GuardedArrays:
    """One framework's arrays; `guard` returns a method's context by its name, which ends at an error and notes it."""

    needs = ALWAYS

    def __init__(self, framework: ArrayFramework, name: str, guard: GuardMaker) -> None:
        self.name = name
        self._framework = framework
        self._guard = guard
        # The plugin's own adapters return right values or raise, and their handles never raise: no check needed.
        self._is_ours = type(framework).__module__.startswith(f"{__package__}.")

    def array_type(self) -> type | None:
        """Return the array class; None where the framework fails."""
        with self._guard("array_type"):
            kind: object = self._framework.array_type()
            if kind is None:
                return None
            # With `object`, everything that a test creates would be an array.
            if not is_kind_of(type(kind), type) or kind is object:
                raise WrongAnswer(f"returned {shown(kind)}, accepted are a class of arrays and None")
            return kind  # type: ignore[return-value] # by its metaclass
        return None

    def storage(self, array: object) -> int:
        """Return the storage key; where the framework fails, the array's id, as of memory that it does not share."""
        with self._guard("storage"):
            return whole(self._framework.storage(array), "a number")
        return id(array)

    def read(self, array: object) -> ArrayReading | None:
        """Return the checked metadata; None where the framework fails."""
        with self._guard("read"):
            return _checked_or_none(self._framework.read(array), array)
        return None

    def storage_many(self, arrays: Sequence[object]) -> list[int]:
        """Return the storage key of each array. Guard the arrays one by one only if the call for all of them fails."""
        with contextlib.suppress(Exception):
            if self._is_ours:
                return storage_many(self._framework, arrays)
        return [self.storage(array) for array in arrays]

    def hold(self, array: object) -> StorageHandle:
        """Return a weak handle on the memory; where the framework fails, on the array itself."""
        with self._guard("hold"):
            return _GuardedHandle(self._framework.hold(array), self._guard)
        return _ArrayHandle(array)

    def read_many(self, arrays: Sequence[object]) -> list[ArrayReading | None]:
        """Return the metadata of each array. Guard the arrays one by one only if the call for all of them fails."""
        with contextlib.suppress(Exception):
            if self._is_ours:
                return read_many(self._framework, arrays)
            return [_checked_or_none(self._framework.read(array), array) for array in arrays]
        return [self.read(array) for array in arrays]

    def hold_many(self, arrays: Sequence[object]) -> list[StorageHandle]:
        """Return a handle for each array. Guard the arrays one by one only if the call for all of them fails."""
        with contextlib.suppress(Exception):
            if self._is_ours:
                return hold_many(self._framework, arrays)
            return [_GuardedHandle(self._framework.hold(array), self._guard) for array in arrays]
        return [self.hold(array) for array in arrays]

    def creation_lines(self, arrays: Sequence[object], is_user_file: Callable[[str], bool]) -> Mapping[int, Origin]:
        """Return the lines that the arrays themselves know, by id; none where the framework has none or fails."""
        lines_of = getattr(self._framework, "creation_lines", None)
        if lines_of is None:
            return {}
        from pytest_gpuleak.model.findings import Origin

        with self._guard("creation_lines"):
            found: Mapping[int, Origin] = lines_of(arrays, is_user_file)
            return {whole(key, "a number"): origin for key, origin in found.items() if type(origin) is Origin}
        return {}

    def parts(self, arrays: Sequence[object]) -> set[int]:
        """Return the ids of the arrays that are parts of others; none where the framework has none or fails."""
        parts_of = getattr(self._framework, "parts", None)
        if parts_of is None:
            return set()
        with self._guard("parts"):
            return {whole(identity, "ids") for identity in parts_of(arrays)}
        return set()

    def memory(self, array: object) -> MemoryRange | None:
        """Return where the array's memory is; None unless it is an array of the plugin's own frameworks."""
        find = getattr(self._framework, "memory", None) if self._is_ours else None
        with contextlib.suppress(Exception):
            return None if find is None else cast("MemoryRange | None", find(array))
        return None

    def memory_many(self, arrays: Sequence[object]) -> list[MemoryRange | None]:
        """Return for each array what `memory` returns. Ask one by one only if the call for all of them fails."""
        with contextlib.suppress(Exception):
            if self._is_ours:
                return memory_many(self._framework, arrays)
        return [self.memory(array) for array in arrays]

    def storage_users(self, array: object) -> int | None:
        """Return how many share the array's memory; None where the framework fails."""
        with self._guard("storage_users"):
            users: object = self._framework.storage_users(array)
            return None if users is None else whole(users, "a number or None")
        return None

    @contextlib.contextmanager
    def trace_origins(self, is_user_file: Callable[[str], bool]) -> Iterator[OriginLog]:
        """Trace creating lines; yield an empty log where the framework fails. Errors of the body pass."""
        with entered(lambda: self._framework.trace_origins(is_user_file), self._guard, "trace_origins") as log:
            yield {} if log is None else log


@contextlib.contextmanager
def entered(make: Callable[[], Any], guard: GuardMaker, member: str) -> Iterator[Any]:
    """Enter a context within guards, or yield None where it fails. The body's errors pass, unseen by the context."""
    found = context = None
    with guard(member):
        made = make()
        found = made.__enter__()
        context = made
    try:
        yield found
    finally:
        if context is not None:
            with guard(member):
                context.__exit__(None, None, None)


class _GuardedHandle:
    __slots__ = ("_guard", "_handle", "storage")

    def __init__(self, handle: StorageHandle, guard: GuardMaker) -> None:
        self.storage = whole(handle.storage, "a handle whose storage is a number")
        self._handle = handle
        self._guard = guard

    def alive(self) -> bool:
        with self._guard("hold(...).alive"):
            return bool(self._handle.alive())
        return False


class _ArrayHandle:
    __slots__ = ("_array", "storage")

    def __init__(self, array: object) -> None:
        self.storage = id(array)
        self._array: Callable[[], object | None]
        try:
            self._array = weakref.ref(array)
        except TypeError:
            self._array = lambda: None

    def alive(self) -> bool:
        return self._array() is not None


def _checked_or_none(reading: object, array: object) -> ArrayReading | None:
    return None if reading is None else _checked(reading, array)


def _checked(reading: Any, array: object) -> ArrayReading:
    """Copy the reading into plain data without references to the framework's objects. Raises WrongAnswer."""
    if not is_named(reading, ArrayReading):
        raise WrongAnswer(f"returned {shown(reading)}, accepted are an ArrayReading and None")
    if type(reading.shape) is not tuple and not is_kind_of(type(reading.shape), tuple):
        raise WrongAnswer(f"returned the shape {shown(reading.shape)}, accepted is a tuple of sizes")
    for text in (reading.dtype, reading.device):
        if type(text) is not str:
            raise WrongAnswer(f"returned {shown(text)} as dtype or device, accepted is a text")
    return ArrayReading(
        identity=id(array),
        shape=tuple(whole(size, "a tuple of sizes") for size in reading.shape),
        dtype=reading.dtype,
        device=reading.device,
        bytes=whole(reading.bytes, "a number of bytes, 0 or more", least=0),
        storage=whole(reading.storage, "a number"),
        storage_bytes=whole(reading.storage_bytes, "a number of bytes, 0 or more", least=0),
        shards=_checked_shards(reading.shards),
        pending=getattr(reading, "pending", False) is True,
    )


def _checked_shards(shards: Any) -> tuple[tuple[str, int], ...]:
    if type(shards) is not tuple:
        raise WrongAnswer(f"returned the shards {shown(shards)}, accepted is a tuple of devices and bytes")
    found = []
    for shard in shards:
        if type(shard) is not tuple or len(shard) != 2 or type(shard[0]) is not str:
            raise WrongAnswer(f"returned the shard {shown(shard)}, accepted is a device and its bytes")
        found.append((shard[0], whole(shard[1], "a number of bytes, 0 or more", least=0)))
    return tuple(found)
