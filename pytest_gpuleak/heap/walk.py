"""A walk over every object that Python can reach, and their sizes, without running a stranger's code.

The collector knows containers alone. A bytearray, a str or a NumPy array is met as what a container refers to; a dict or
tuple of nothing else is untracked itself (Objects/dictobject.c, MAINTAIN_TRACKING) and is descended into, as is an array
into its base. What native code alone holds is not met.
"""

from __future__ import annotations

from itertools import compress, filterfalse, repeat
from struct import calcsize
from sys import getsizeof, version_info
from types import MethodDescriptorType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.frames import local_variables, running_frames
from pytest_gpuleak.heap.library_types import extension_class
from pytest_gpuleak.heap.referrers import get_objects, get_referents, is_tracked, untouchable_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pytest_gpuleak.heap.referrers import Deadline

_CHUNK: Final = 2048
_GC_HEAD: Final = getsizeof([]) - list.__sizeof__([])
"""Bytes before an object that the collector may track (Include/internal/pycore_gc.h, PyGC_Head)."""

_HAVE_GC: Final = 1 << 14
"""Include/object.h, Py_TPFLAGS_HAVE_GC."""

_PREHEADER: Final = (1 << 4 | 1 << 3) if version_info >= (3, 12) else 1 << 4 if version_info >= (3, 11) else 0
"""Include/object.h, Py_TPFLAGS_MANAGED_DICT and, from 3.12 on, Py_TPFLAGS_MANAGED_WEAKREF."""

_PREHEADER_SIZE: Final = 2 * calcsize("P")
"""Bytes before an object whose attributes or weak references the interpreter manages (`_PyType_PreHeaderSize`)."""

_FLAGS: Final[Any] = type.__dict__["__flags__"]
_ITEM_SIZE: Final[Any] = type.__dict__["__itemsize__"]


class Batch(NamedTuple):
    """Some objects of the heap that the walk met together.

    Attributes:
        objects: the objects; one that several containers refer to may be met in several batches.
        parents: the untracked containers that they were found in; empty where the collector shows who holds them.
        above: the batch that the parents were found in.
        owners: for each object the index of its parent.
        places: for each parent the index of its own parent, among those of `above`.
    """

    objects: list[object]
    parents: Sequence[object] = ()
    above: Batch | None = None
    owners: Sequence[int] = ()
    places: Sequence[int] = ()


class HeapWalk:
    """One walk. It holds objects while it lasts: drop it, and what it gave, afterwards.

    The whole heap must be visible to the collector, which should be paused.

    Args:
        deadline: when to give up.
        ignore: ids of the caller's own containers, whose size differs from one walk to the next.

    Attributes:
        complete: whether `batches` came to its end before the deadline.
    """

    def __init__(self, deadline: Deadline, ignore: Collection[int] = ()) -> None:
        self.complete = False
        self._deadline = deadline
        self._hiding: dict[int, bool] = {}
        self._met: set[int] = set()
        self._ignored = {*ignore, id(self._hiding), id(self._met), *untouchable_modules()}
        self._array_class: Any = extension_class("numpy", "ndarray")

    def batches(self) -> Iterator[Batch]:
        """Every object, in lists that must not be kept."""
        values: list[object] = []
        for running in running_frames(()):
            for _, value in local_variables(running.frame):
                values.append(value)
        yield from self._untracked(list(filterfalse(is_tracked, values)))
        values.clear()
        containers = get_objects()
        chunk: list[object] = []
        try:
            for start in range(0, len(containers), _CHUNK):
                if self._deadline.passed():
                    return
                chunk = [value for value in containers[start : start + _CHUNK] if id(value) not in self._ignored]
                yield Batch(chunk)
                yield from self._untracked(list(filterfalse(is_tracked, get_referents(*chunk))))
                chunk.clear()
            self.complete = not self._deadline.passed()
        finally:
            # This very frame is among them: left in its locals they would be a cycle that keeps the whole heap.
            containers.clear()
            chunk.clear()

    def _untracked(self, objects: list[object]) -> Iterator[Batch]:
        """A batch of untracked objects, and batches of the untracked objects inside them."""
        batch = Batch(objects)
        lists = [objects]
        try:
            while batch.objects:
                yield batch
                nested: list[object] = []
                places: list[int] = []
                for index, container in self._hiding_among(batch.objects):
                    if id(container) not in self._met:
                        self._met.add(id(container))
                        nested.append(container)
                        places.append(batch.owners[index] if batch.owners else 0)
                inner: list[object] = []
                owners: list[int] = []
                lists.extend((nested, inner))
                for index, container in enumerate(nested):
                    if self._deadline.worked(16):
                        return
                    inner.extend(filterfalse(is_tracked, inside(container, self._array_class)))
                    owners.extend(repeat(index, len(inner) - len(owners)))
                batch = Batch(inner, nested, batch, owners, places)
        finally:
            # As in `batches`: running frames, this one too, are untracked and may be among them.
            container = None
            for some in lists:
                some.clear()

    def _hiding_among(self, objects: list[object]) -> Iterator[tuple[int, object]]:
        """Those that may refer to others though the collector does not track them, each with its index."""
        kinds = list(map(id, map(type, objects)))
        for kind, example in _new_types(objects, kinds, self._hiding):
            is_array = self._array_class is not None and safe_access.is_subclass(example, self._array_class)
            has_gc = bool(_FLAGS.__get__(example) & _HAVE_GC) and not safe_access.is_subclass(example, type)
            self._hiding[kind] = is_array or has_gc
        return compress(enumerate(objects), map(self._hiding.__getitem__, kinds))


def _new_types(objects: list[object], kinds: list[int], known: Mapping[int, object]) -> list[tuple[int, type]]:
    """The types among `objects` that are not known, with their ids; `kinds` are the ids of the types of all."""
    found: dict[int, type] = {}
    if known.keys() >= set(kinds):  # in C, as in most batches
        return []
    for kind, value in zip(kinds, objects, strict=True):
        if kind not in known and kind not in found:
            found[kind] = type(value)
    return list(found.items())


def inside(container: object, array_class: Any) -> list[object]:
    """What an untracked object refers to: the base, for an array (`array_class`, or None without numpy)."""
    if array_class is not None and safe_access.is_a(container, array_class):
        base = safe_access.slot(container, array_class, "base")
        return [] if base is None else [base]
    return get_referents(container)


class Sizes:
    """Bytes of objects themselves, without what they refer to, as `sys.getsizeof` gives them.

    A ``__sizeof__`` that is written in Python is passed over for the nearest in the base classes that is written in C.
    One instance a walk: it knows types by their ids.

    Args:
        maps: whether a memory map counts by its length: it is memory of the process, and not of the heap.
    """

    def __init__(self, *, maps: bool = False) -> None:
        self._maps = maps
        self._measures: dict[int, Callable[[Any], int]] = {}
        self._varying: set[int] = set()
        self._special: set[int] = set()

    def of(self, objects: list[object]) -> list[int]:
        """The size of each."""
        kinds = self._kinds(objects)
        measures = self._measures
        try:
            return [measures[kind](value) for kind, value in zip(kinds, objects, strict=True)]
        except Exception:  # noqa: BLE001 - a library's function may raise for an object that it has not finished
            return [_size_or_zero(measures[kind], value) for kind, value in zip(kinds, objects, strict=True)]

    def large(self, objects: list[object], minimum: int) -> list[tuple[object, int]]:
        """Those of at least `minimum` bytes, with their size. Types whose objects are all alike are left out."""
        kinds = self._kinds(objects)
        varying = list(compress(objects, map(self._varying.__contains__, kinds)))
        special = list(compress(objects, map(self._special.__contains__, kinds)))
        try:
            sizes = list(map(getsizeof, varying))  # in C: half a million a walk
        except Exception:  # noqa: BLE001 - see above
            sizes = self.of(varying)
        found = list(compress(zip(varying, sizes, strict=True), map(minimum.__le__, sizes)))
        for value, size in zip(special, self.of(special), strict=True):
            if size >= minimum:
                found.append((value, size))
        return found

    def _kinds(self, objects: list[object]) -> list[int]:
        kinds = list(map(id, map(type, objects)))
        for kind, example in _new_types(objects, kinds, self._measures):
            measure, varies = _measure_of(example, maps=self._maps)
            self._measures[kind] = measure
            if varies:
                (self._varying if measure is getsizeof else self._special).add(kind)
        return kinds


def _size_or_zero(measure: Callable[[Any], int], value: object) -> int:
    try:
        return measure(value)
    except Exception:  # noqa: BLE001 - as above
        return 0


def _measure_of(kind: type, *, maps: bool) -> tuple[Callable[[Any], int], bool]:
    """How to size objects of a type, and whether they differ in size."""
    if kind is int or safe_access.is_subclass(kind, type):
        return _basic_size, False
    if maps and is_map(kind):
        return _map_size, True
    overridden = False
    for base in safe_access.mro(kind):
        found = safe_access.class_dict(base).get("__sizeof__")
        if type(found) is MethodDescriptorType:
            varies = base is not object or bool(_ITEM_SIZE.__get__(kind))
            # The interpreter looks the method up in the same order, and comes upon the same one.
            return (_inherited(found, kind) if overridden else getsizeof), varies
        overridden = overridden or found is not None
    return _basic_size, False


def _inherited(measure: Callable[[Any], int], kind: type) -> Callable[[Any], int]:
    """A size by a base class's function, with the collector's head as `sys.getsizeof` adds it."""
    head = _GC_HEAD if _FLAGS.__get__(kind) & _HAVE_GC else 0
    if _FLAGS.__get__(kind) & _PREHEADER:
        head += _PREHEADER_SIZE
    return lambda value: measure(value) + head


def _basic_size(_: object) -> int:
    """For ints, nearly all alike, and classes, whose metaclass might answer for them: what CPython takes at least."""
    return 32


def is_map(kind: type) -> bool:
    """Whether it is the type of memory maps."""
    map_class = safe_access.loaded_class("mmap", "mmap")
    return map_class is not None and safe_access.is_subclass(kind, map_class)


def _map_size(value: Any) -> int:
    """The length of a memory map; 0 for a closed one."""
    map_class: Any = safe_access.loaded_class("mmap", "mmap")
    try:
        length: int = map_class.__len__(value)
    except ValueError:
        return 0
    return length


def maps_file(value: Any) -> bool:
    """Whether a memory map is one of a file that it keeps open: asked for the file's size, another raises OSError."""
    map_class: Any = safe_access.loaded_class("mmap", "mmap")
    try:
        map_class.size(value)
    except (OSError, ValueError):
        return False
    return True
