"""Walk over every object that Python can reach, and size them, without running user code.

The collector knows containers alone, so the walk descends into what they refer to, untracked dicts and tuples
(Objects/dictobject.c, MAINTAIN_TRACKING), bases of arrays and what wraps arrays. What only C++ holds is not met.
"""

from __future__ import annotations

from gc import get_referents
from itertools import chain, compress, count, filterfalse, repeat
from struct import calcsize
from sys import getsizeof, version_info
from types import MethodDescriptorType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.collector import get_objects
from pytest_gpuleak.heap.frames import local_variables, running_frames
from pytest_gpuleak.heap.immortal_containers import is_tracked
from pytest_gpuleak.heap.library_types import ArrayWrappers, extension_class
from pytest_gpuleak.heap.referrers import untouchable_modules
from pytest_gpuleak.heap.type_sieve import HAVE_GC, TYPE_FLAGS, TypeIds, TypeSieve, TypeTable, may_refer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pytest_gpuleak.heap.budget import Budget

_CHUNK: Final = 2048
_GC_HEAD: Final = getsizeof([]) - list.__sizeof__([])
"""Bytes before an object that the collector may track (Include/internal/pycore_gc.h, PyGC_Head)."""

_PREHEADER: Final = (1 << 4 | 1 << 3) if version_info >= (3, 12) else 1 << 4 if version_info >= (3, 11) else 0
"""Include/object.h, Py_TPFLAGS_MANAGED_DICT and, from 3.12 on, Py_TPFLAGS_MANAGED_WEAKREF."""

_PREHEADER_SIZE: Final = 2 * calcsize("P")
"""Bytes before an object with a managed dict or weak references (`_PyType_PreHeaderSize`)."""

_LONGEST_CHARACTER: Final = 12
"""Bytes that a character of a string takes at most: four, and as many of its UTF-8 and, up to Python 3.11, as a ``wchar_t``."""

_ITEM_SIZE: Final[Any] = type.__dict__.get("__itemsize__")
"""Reads from a class the size of the items that its objects end in; None on PyPy."""


class Batch(NamedTuple):
    """Objects that the walk met together, and the untracked containers that hold them (`parents`, if there are any).

    `owners` has by object the index of its parent, `places` by parent the index of its own parent in the batch `above`.
    """

    objects: list[object]
    type_ids: TypeIds
    parents: Sequence[object] = ()
    above: Batch | None = None
    owners: Sequence[int] = ()
    places: Sequence[int] = ()


class HeapWalk:
    """One walk, for which the whole heap must be visible. It refers to objects: drop it, and its batches, afterwards.

    `ignore` has the ids of the caller's own containers; `complete` tells whether `batches` ended within the budget.
    """

    def __init__(self, budget: Budget, ignore: Collection[int] = ()) -> None:
        self.complete = False
        self._budget = budget
        self._met: set[int] = set()
        self._ignored = {*ignore, id(self._met), *untouchable_modules()}
        self._array_class = array_class = extension_class("numpy", "ndarray")
        self._wrappers = wrappers = ArrayWrappers()

        # Without self, which would be a cycle.
        def is_special(kind: type) -> bool:
            return (array_class is not None and safe_access.is_subclass(kind, array_class)) or wrappers.is_wrapper_type(
                kind
            )

        self.types = TypeTable()
        """The types of the objects met, for sieves of the same walk."""
        self._special = TypeSieve(is_special, self.types)
        self._hiding = TypeSieve(lambda kind: may_refer(kind) or is_special(kind), self.types)

    def batches(self) -> Iterator[Batch]:
        """Yield every object, in lists that must not be kept."""
        values = [value for running in running_frames(()) for _, value in local_variables(running.frame)]
        yield from self._untracked(list(filterfalse(is_tracked, values)))
        values.clear()
        containers = get_objects()
        chunk: list[object] = []
        try:
            for start in range(0, len(containers), _CHUNK):
                chunk = containers[start : start + _CHUNK]
                if not self._ignored.isdisjoint(map(id, chunk)):
                    chunk = [value for value in chunk if id(value) not in self._ignored]
                yield Batch(chunk, self.types.ids_of(chunk))
                referents = get_referents(*chunk)
                spent = self._budget.worked(len(chunk) + len(referents))
                untracked = [] if spent else list(filterfalse(is_tracked, referents))
                referents.clear()
                chunk.clear()
                if spent:
                    return
                yield from self._untracked(untracked)
            self.complete = not self._budget.spent
        finally:
            # This frame is among them: left in its locals they would be a cycle that keeps the whole heap.
            containers.clear()
            chunk.clear()

    def _untracked(self, objects: list[object]) -> Iterator[Batch]:
        batch = Batch(objects, self.types.ids_of(objects))
        lists = [objects]
        try:
            while batch.objects:
                yield batch
                nested, places = self._unmet(batch)
                inner: list[object] = []
                owners: list[int] = []
                lists.extend((nested, inner))
                for start in range(0, len(nested), _CHUNK):
                    if self._budget.worked(self._descend(nested[start : start + _CHUNK], start, inner, owners)):
                        return
                batch = Batch(inner, self.types.ids_of(inner), nested, batch, owners, places)
        finally:
            # As in `batches`: running frames, this one too, are untracked and may be among them.
            for some in lists:
                some.clear()

    def _unmet(self, batch: Batch) -> tuple[list[object], list[int]]:
        """Return the untracked containers in a batch that the walk has not met, and the owner of each."""
        marks = self._hiding.marks(batch.objects, batch.type_ids)
        hidden = list(compress(batch.objects, marks))
        owners = compress(batch.owners, marks) if batch.owners else repeat(0, len(hidden))
        found = dict(zip(map(id, hidden), zip(hidden, owners, strict=True), strict=True))
        for identity in found.keys() & self._met:
            del found[identity]
        self._met.update(found)
        nested = [container for container, _ in found.values()]
        places = [owner for _, owner in found.values()]
        hidden.clear()
        found.clear()
        return nested, places

    def _descend(self, parents: list[object], first: int, inner: list[object], owners: list[int]) -> int:
        """Add what untracked containers hold to `inner`, and the index of each one's container, from `first` on.

        Return how many references were followed.
        """
        contents = list(map(get_referents, parents))
        for index in compress(range(len(parents)), self._special.marks(parents)):
            contents[index] = inside(parents[index], self._array_class, self._wrappers)
        children = list(chain.from_iterable(contents))
        untracked = [not tracked for tracked in map(is_tracked, children)]
        inner.extend(compress(children, untracked))
        owners.extend(compress(chain.from_iterable(map(repeat, count(first), map(len, contents))), untracked))
        work = len(parents) + len(children)
        for some in (*contents, contents, children, parents):
            some.clear()
        return work


def inside(container: object, array_class: Any, wrappers: ArrayWrappers) -> list[object]:
    """Return what an untracked object refers to; for an array its base (`array_class`, None without numpy)."""
    if array_class is not None and safe_access.is_a(container, array_class):
        base = safe_access.slot(container, array_class, "base")
        return [] if base is None else [base]
    return get_referents(container) or [part for _, part in wrappers.inside(container)]


class Sizes:
    """Sizes of objects in bytes, as `sys.getsizeof` returns them; with `maps`, a memory map's length. For one walk.

    A ``__sizeof__`` written in Python is replaced by the nearest in the bases that is written in C.
    """

    def __init__(self, *, maps: bool = False) -> None:
        self._maps = maps
        self._measures: dict[int, Callable[[Any], int]] = {}
        self._varying: set[int] = set()
        self._special: set[int] = set()

    def of(self, objects: list[object]) -> list[int]:
        """Return the size of each object."""
        kinds = self._kinds(objects)
        measures = self._measures
        try:
            return [measures[kind](value) for kind, value in zip(kinds, objects, strict=True)]
        except Exception:  # noqa: BLE001 - a library's function may raise for an object that it has not finished
            return [_size_or_zero(measures[kind], value) for kind, value in zip(kinds, objects, strict=True)]

    def large(self, objects: list[object], types: TypeIds, minimum: int) -> list[tuple[object, int]]:
        """Return the objects of at least `minimum` bytes with their sizes. Types of fixed small size are skipped."""
        kinds = self._kinds(objects, types)
        varying = self._of_kinds(self._varying, objects, types)
        special = self._of_kinds(self._special, objects, types)
        if id(str) in types.all:  # half of all, and seldom long: their lengths take a quarter of the time
            texts = list(compress(objects, map(id(str).__eq__, kinds)))
            varying += compress(texts, map((minimum // _LONGEST_CHARACTER).__le__, map(len, texts)))  # type: ignore[arg-type]
        try:
            sizes = list(map(getsizeof, varying))  # in C, for half a million objects a walk
        except Exception:  # noqa: BLE001 - see above
            sizes = self.of(varying)
        found = list(compress(zip(varying, sizes, strict=True), map(minimum.__le__, sizes)))
        return found + [pair for pair in zip(special, self.of(special), strict=True) if pair[1] >= minimum]

    def _of_kinds(self, wanted: set[int], objects: list[object], types: TypeIds) -> list[object]:
        return list(compress(objects, map(wanted.__contains__, types.each))) if wanted & types.all else []

    def _kinds(self, objects: list[object], types: TypeIds | None = None) -> list[int]:
        kinds = list(map(id, map(type, objects))) if types is None else types.each
        new = (set(kinds) if types is None else types.all).difference(self._measures)
        for kind, example in dict(zip(kinds, map(type, objects), strict=True)).items() if new else ():
            if kind in new:
                measure, varies = _measure_of(example, maps=self._maps)
                self._measures[kind] = measure
                if varies and example is not str:
                    (self._varying if measure is getsizeof else self._special).add(kind)
        return kinds


def _size_or_zero(measure: Callable[[Any], int], value: object) -> int:
    try:
        return measure(value)
    except Exception:  # noqa: BLE001 - as above
        return 0


def _measure_of(kind: type, *, maps: bool) -> tuple[Callable[[Any], int], bool]:
    if kind is int or kind is bool or safe_access.is_subclass(kind, type):
        return _basic_size, False
    if maps and is_map(kind):
        return _map_size, True
    overridden = False
    for base in safe_access.mro(kind):
        found = safe_access.class_dict(base).get("__sizeof__")
        if type(found) is MethodDescriptorType:
            varies = base is not object or _ITEM_SIZE is None or bool(_ITEM_SIZE.__get__(kind))
            # The interpreter looks the method up in the same order.
            return (_inherited(found, kind) if overridden else getsizeof), varies
        overridden = overridden or found is not None
    return _basic_size, False


def _inherited(measure: Callable[[Any], int], kind: type) -> Callable[[Any], int]:
    # `sys.getsizeof` adds the collector's head.
    head = _GC_HEAD if TYPE_FLAGS.__get__(kind) & HAVE_GC else 0
    if TYPE_FLAGS.__get__(kind) & _PREHEADER:
        head += _PREHEADER_SIZE
    return lambda value: measure(value) + head


def _basic_size(_: object) -> int:
    """Return the size that CPython takes at least, for ints and for classes, whose metaclass might run code."""
    return 32


def is_map(kind: type) -> bool:
    """Tell whether a type is that of memory maps."""
    map_class = safe_access.loaded_class("mmap", "mmap")
    return map_class is not None and safe_access.is_subclass(kind, map_class)


def _map_size(value: Any) -> int:
    map_class: Any = safe_access.loaded_class("mmap", "mmap")
    try:
        length: int = map_class.__len__(value)
    except ValueError:
        return 0
    return length


def maps_file(value: Any) -> bool:
    """Tell whether a memory map belongs to a file that it keeps open. Others raise OSError for the file's size."""
    map_class: Any = safe_access.loaded_class("mmap", "mmap")
    try:
        map_class.size(value)
    except (OSError, ValueError):
        return False
    return True
