"""Tell arrays from other objects by type alone: reading anything else of an object may run user code."""

from __future__ import annotations

import sys
import types
from itertools import compress
from operator import is_
from typing import TYPE_CHECKING

from pytest_gpuleak.heap.safe_access import is_subclass, mro, read_module, read_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpuleak.adapters.protocol import ArrayFramework


_read_flags = type.__dict__["__flags__"].__get__


_PLAIN: dict[int, type] = {
    id(kind): kind
    for kind in (dict, list, tuple, set, frozenset, type, types.FunctionType, types.MethodType,
                 types.BuiltinFunctionType, types.CellType, types.FrameType, types.TracebackType, types.GeneratorType,
                 types.ModuleType, property)
}  # fmt: skip
"""Types that are no arrays and live as long as the process, by id: such an id is never reused."""

ALWAYS = "sys"
"""`needs` of a reader or a probe that is asked always: this module is always imported."""

_last_plain: list[type] = []
"""The types of the objects of the last look that met none but `_PLAIN` types, which it keeps alive."""

FEW = 1000
"""Objects up to which a look is worth remembering: more are hardly twice of the same types, and their list would be long."""

_AT_ONCE = 4096
"""Objects that are examined in one batch."""

_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE (Include/object.h): not set for a type that is a static C structure."""

_PERMANENT = {"_pytest", "pluggy", "pytest_gpuleak", *sys.stdlib_module_names} - {"__main__"}
"""Packages whose classes live as long as the process, where their modules still name them."""


def select_arrays(objects: list[object], bases: list[type]) -> list[object]:
    """Return the objects that are arrays of one of the `bases`.

    The memo of types dies with the call: keeping a MagicMock's own type alive would keep its call arguments alive.
    """
    return [] if are_plain(objects) else select_among_strange(objects, bases)


def select_among_strange(objects: list[object], bases: list[type]) -> list[object]:
    """Like `select_arrays`, for objects that `are_plain` has told not to be plain."""
    wanted, arrays, known = set(map(id, bases)), set[int](), set(_PLAIN)
    found: list[object] = []
    for start in range(0, len(objects), _AT_ONCE):
        part = objects[start : start + _AT_ONCE]
        kinds = list(map(id, map(type, part)))
        strange = set(kinds).difference(known)
        for candidate in compress(part, map(strange.__contains__, kinds)):
            kind = type(candidate)
            if id(kind) in arrays:
                found.append(candidate)
            elif id(kind) not in known:
                if not wanted.isdisjoint(map(id, mro(kind))):
                    arrays.add(id(kind))
                    found.append(candidate)
                else:
                    known.add(id(kind))
                    if _outlives_tests(kind):
                        _PLAIN[id(kind)] = kind
    return found


def are_plain(objects: list[object]) -> bool:
    """Tell whether objects are few, and of types that outlive the tests and are no arrays: what most tests leave."""
    if len(objects) >= FEW:
        return False
    if len(objects) == len(_last_plain) and all(map(is_, map(type, objects), _last_plain)):  # half the time of ids
        return True
    kinds = list(map(type, objects))
    if not _PLAIN.keys() >= set(map(id, kinds)):
        return False
    _last_plain[:] = kinds
    return True


def note_permanent(packages: Iterable[str]) -> None:
    """Note packages that stay loaded, such as those of pytest's plugins, of which each test leaves an object or two."""
    _PERMANENT.update(packages)


def _outlives_tests(kind: type) -> bool:
    """Return whether a type is never freed and its id never reused: a static C type, or a class of a shared library."""
    if not _read_flags(kind) & _HEAP_TYPE:
        return True
    module = read_module(kind)
    if type(module) is not str or module.partition(".")[0] not in _PERMANENT:
        return False
    loaded = sys.modules.get(module)
    return type(loaded) is types.ModuleType and vars(loaded).get(read_name(kind)) is kind


def walk_arrays(value: object, base: type) -> Iterator[object]:
    """Yield the arrays of type `base` in a value, or nested in it in exact lists, tuples and dicts."""
    if is_subclass(type(value), base):
        yield value
    elif type(value) is list or type(value) is tuple:
        for part in value:
            yield from walk_arrays(part, base)
    elif type(value) is dict:
        for part in value.values():
            yield from walk_arrays(part, base)


def array_types(frameworks: Sequence[ArrayFramework]) -> list[type]:
    """Return the array classes of the frameworks that the tests have imported: one look into `sys.modules` for each."""
    bases = []
    modules = sys.modules
    for framework in frameworks:
        if framework.needs not in modules:
            continue
        base = framework.array_type()
        if base is not None:
            bases.append(base)
            framework.needs = ALWAYS  # arrays outlive a module that a test removes
    return bases


def array_key(array: object, frameworks: Sequence[ArrayFramework]) -> tuple[int, int]:
    """Return the id and the memory's address. A later array that has both leaves no more behind than the first."""
    return id(array), framework_of(array, frameworks).storage(array)


def framework_of(array: object, frameworks: Sequence[ArrayFramework]) -> ArrayFramework:
    """Return the framework that an array belongs to. Raises LookupError for an object that is no array."""
    for framework in frameworks:
        base = framework.array_type()
        if base is not None and is_subclass(type(array), base):
            return framework
    raise LookupError(f"{type(array).__name__} is an array of none of the frameworks watched")


def find_arrays(identities: set[int], objects: list[object], bases: list[type]) -> list[object]:
    """Return the arrays among `objects` whose id is in `identities`."""
    return select_arrays(list(compress(objects, map(identities.__contains__, map(id, objects)))), bases)
