"""What the engine needs to know of an array framework: one small class a framework, one file each."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from pytest_gpuleak.findings import Origin

OriginLog: TypeAlias = "Mapping[int, Origin]"
"""The creating line by storage key (`ArrayReading.storage`)."""

BACKWARD = 0
"""The key of no storage, under which a log has the line that last ran a backward pass: gradients are made in native code,
where nobody sees them, and become known by the tensor that has them."""


class ArrayReading(NamedTuple):
    """Plain metadata of one live array; it refers to nothing of the user's.

    Attributes:
        identity: ``id()`` of the array, meaningful while it lives.
        shape: sizes of the dimensions.
        dtype: element type without the framework's prefix.
        device: ``cpu``, ``cuda:0``, ...
        bytes: bytes of the elements it shows.
        storage: key of the memory behind it: equal for arrays that share it, while it lives.
        storage_bytes: bytes of that memory.
    """

    identity: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    bytes: int
    storage: int
    storage_bytes: int


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


def class_lines(kind: type) -> tuple[type, ...]:
    """The method resolution order of a class, read without asking its metaclass.

    ``cls.__mro__`` goes through a metaclass's ``__getattribute__``, which is a stranger's code.
    """
    lines: tuple[type, ...] = _read_mro(kind)
    return lines


_read_mro = type.__dict__["__mro__"].__get__
_read_module = type.__dict__["__module__"].__get__
_read_name = type.__dict__["__name__"].__get__
_read_flags = type.__dict__["__flags__"].__get__


def is_kind_of(kind: type, base: type) -> bool:
    """Whether `base` is in the class's method resolution order, by identity.

    ``isinstance`` asks ``__class__``, which proxies answer with side effects; ``in`` on a tuple may call a
    metaclass's ``__eq__``.
    """
    return id(base) in map(id, _read_mro(kind))


# Nearly all that is born in a test is of one of these, which never die: their ids hold.
_PLAIN: dict[int, type] = {
    id(kind): kind
    for kind in (dict, list, tuple, set, frozenset, type, types.FunctionType, types.MethodType,
                 types.BuiltinFunctionType, types.CellType, types.FrameType, types.TracebackType, types.GeneratorType,
                 types.ModuleType, property)
}  # fmt: skip
"""Types that are no arrays, and never go, by id."""

_FEW = 1000

_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: not set for a type that is a static structure (Include/object.h)."""

_PERMANENT = frozenset({"_pytest", "pluggy", "pytest_gpuleak", *sys.stdlib_module_names} - {"__main__"})


def select_arrays(objects: list[object], bases: list[type]) -> list[object]:
    """Those of `objects` that are arrays of one of the `bases`.

    The memo is keyed by ids and dies with the call: one that lived longer would keep types alive, and every MagicMock
    has a type of its own that reaches its call arguments. Types that live as long as the process are remembered.
    """
    # What a test without arrays leaves is a few dozen objects of such types: told in C. On a whole heap a loop is faster.
    if len(objects) < _FEW and _PLAIN.keys() >= set(map(id, map(type, objects))):
        return []
    wanted = set(map(id, bases))
    known: dict[int, object] = {**_PLAIN}
    found: list[object] = []
    for candidate in objects:
        kind = type(candidate)
        other = known.get(id(kind))
        if other is None:
            other = known[id(kind)] = wanted.isdisjoint(map(id, _read_mro(kind)))
            if other and _outlives_tests(kind):
                _PLAIN[id(kind)] = kind
        if other is False:
            found.append(candidate)
    return found


def _outlives_tests(kind: type) -> bool:
    """Whether a type never goes, so that its id stays its own: one written in C, or a library's that all tests share."""
    if not _read_flags(kind) & _HEAP_TYPE:
        return True
    module = _read_module(kind)
    if type(module) is not str or module.partition(".")[0] not in _PERMANENT:
        return False
    loaded = sys.modules.get(module)
    return type(loaded) is types.ModuleType and vars(loaded).get(_read_name(kind)) is kind


def walk_arrays(value: object, base: type) -> Iterator[object]:
    """The arrays of type `base` in a value or in nested exact lists, tuples and dicts of a framework's own making."""
    if is_kind_of(type(value), base):
        yield value
    elif type(value) is list or type(value) is tuple:
        for part in value:
            yield from walk_arrays(part, base)
    elif type(value) is dict:
        for part in value.values():
            yield from walk_arrays(part, base)
