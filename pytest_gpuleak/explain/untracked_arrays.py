"""Find arrays that the collector does not track, by walks over the heap, and who holds them."""

from __future__ import annotations

from gc import get_referents
from itertools import compress, filterfalse, repeat
from operator import is_, is_not
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.registry import untracked_arrays
from pytest_gpuleak.adapters.untracked import MetArrays
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.collector import get_objects
from pytest_gpuleak.heap.immortal_containers import is_tracked
from pytest_gpuleak.heap.library_types import ArrayWrappers
from pytest_gpuleak.heap.referrers import untouchable_modules
from pytest_gpuleak.heap.safe_access import is_a, is_subclass
from pytest_gpuleak.heap.tracing import is_tracing
from pytest_gpuleak.heap.type_sieve import TypeSieve
from pytest_gpuleak.heap.walk import HeapWalk

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pytest_gpuleak.adapters.reference_protocol import ReferenceFinder
    from pytest_gpuleak.explain.search import Explanation
    from pytest_gpuleak.model.readings import ArrayReading

WALK_STEPS: Final = 50_000_000
"""Steps (`heap.budget`) of a walk over the heap: seven million containers and what they hold."""

EXPLAIN_STEPS: Final = 30_000_000
"""Steps of the search for holders."""

_CHUNK: Final = 2048

_TRACED_CHUNK: Final = 65536
"""The same of a walk under `tracemalloc`, which notes the frames each time that a list grows: few large lists grow less often."""

_NESTED: Final = 3

_HOLD_NOTHING: Final = (str, type(None), CodeType, int)
"""The types of most untracked objects that hold no array, the most common first: each is one pass over the rest."""


class HeapArrays:
    """The untracked arrays on the heap, but none of a type in `others`. For a walk the whole heap must be visible."""

    def __init__(self, others: Sequence[type]) -> None:
        self.reader = untracked_arrays()
        self._others = others

    def walk(self) -> MetArrays | None:
        """Walk the heap for the memory behind all arrays; None where the walk was cut."""
        return self._walk_to_plain() if is_tracing() else self.find(lambda *_: False)[1]

    def find(self, wanted: Callable[[int, int], bool]) -> tuple[list[object], MetArrays | None]:
        """Return arrays whose key and bytes `wanted` accepts, without other arrays' bases, and what `walk` returns."""
        if is_tracing():
            return self.plain(wanted), self._walk_to_plain()
        found: dict[int, object] = {}
        met = MetArrays({}, {})
        walk = HeapWalk(Budget(WALK_STEPS), ignore=(id(found),))
        for arrays in self._batches(walk):
            part = self.reader.sizes(arrays, self._others)
            chosen = [array for array, (key, size) in zip(arrays, part, strict=True) if size and wanted(key, size)]
            met.add(self.reader, arrays, part)
            found.update(zip(map(id, chosen), chosen, strict=True))
            chosen.clear()
            arrays.clear()
        listed = list(found.values())
        found.clear()
        return listed, met if walk.complete else None

    def of_young(self) -> set[int]:
        """Return the keys of the memory that the objects visible to the collector hold, without a walk.

        A dictionary or tuple of arrays alone is not visible: the collector does not track it.
        """
        found: set[int] = set()
        array_class = self.reader.array_type()
        if array_class is None:
            return found
        objects = _visible()
        sieve = TypeSieve(_belongs_to(array_class))
        for start in range(0, len(objects), _CHUNK):
            part = objects[start : start + _CHUNK]
            held = get_referents(*part)
            for _ in range(_NESTED):
                part += held
                found.update(key for key, _ in self.reader.sizes(sieve.pick(part), self._others))
                part[:] = filterfalse(is_tracked, [one for kind in (dict, tuple) for one in _of_type(held, kind)])
                held = get_referents(*part)
            part.clear()
        objects.clear()
        return found

    def plain(self, wanted: Callable[[int, int], bool]) -> list[object]:
        """Return the plain arrays with `wanted` memory. It creates few objects: `tracemalloc` slows each one down."""
        array_class = self.reader.array_type()
        wrappers = ArrayWrappers()
        containers = _visible()
        found: list[object] = []
        parts: list[list[object]] = []
        for start in range(0, len(containers), _TRACED_CHUNK):
            parts.append(_worth_a_look(get_referents(*containers[start : start + _TRACED_CHUNK])))
            for _ in range(_NESTED):
                arrays = _of_type(parts[-1], array_class)
                sizes = self.reader.sizes(arrays, self._others)
                found += [array for array, one in zip(arrays, sizes, strict=True) if wanted(*one)]
                for inner in filter(None, map(self._inside, arrays)):
                    parts_of_array = _of_type(inner, array_class)
                    found += [one for one in parts_of_array if wanted(*self.reader.sizes([one], self._others)[0])]
                hidden = [one for kind in (dict, tuple) for one in _of_type(parts[-1], kind)]
                parts.append(_worth_a_look(get_referents(*hidden)))
                for kind in wrappers.exact_types:
                    for value in _of_type(parts[-2], kind):
                        parts[-1] += [part for _, part in wrappers.inside(value)]
            for part in parts:
                part.clear()
            parts.clear()
        containers.clear()
        return found

    def _walk_to_plain(self) -> MetArrays:
        arrays = self.plain(lambda _, size: size > 0)
        sizes = dict(self.reader.sizes(arrays, self._others))
        arrays.clear()
        return MetArrays(sizes, {})

    def keys_of(self, arrays: Sequence[object]) -> list[int]:
        """Return the key of the memory behind each array."""
        return [key for key, _ in self.reader.sizes(arrays, self._others)]

    def read(self, array: object) -> ArrayReading | None:
        """Return an array's metadata; None if it has no memory on the heap."""
        return self.reader.read(array, self._others)

    def _inside(self, array: object) -> list[object]:
        """Return the elements of an array of objects, with what the dicts and tuples among them hold that are untracked too."""
        found = nested = self.reader.elements(array)
        for _ in range(_NESTED if found else 0):  # of most arrays there are none
            containers = [one for kind in (dict, tuple) for one in _of_type(nested, kind)]
            nested = get_referents(*filterfalse(is_tracked, containers))
            found = found + nested
        return found

    def _batches(self, walk: HeapWalk) -> Iterator[list[Any]]:
        """Yield the arrays that something other than an array holds, or an array of objects, some repeatedly."""
        array_class = self.reader.array_type()
        if array_class is None:
            return
        sieve = TypeSieve(_belongs_to(array_class), walk.types)
        met: set[int] = set()
        for batch in walk.batches():
            if not sieve.picks_any_of(batch.type_ids.all):
                continue
            marks = sieve.marks(batch.objects, batch.type_ids)
            if batch.parents:
                bases = [is_a(parent, array_class) for parent in batch.parents]
                marks = [mark and not bases[owner] for mark, owner in zip(marks, batch.owners, strict=True)]
            arrays = [value for value, mark in zip(batch.objects, marks, strict=True) if mark]
            while arrays:
                met.update(map(id, arrays))
                inner = [value for array in arrays for value in sieve.pick(self._inside(array))]
                yield arrays
                arrays = [value for value in inner if id(value) not in met]
                inner.clear()


def explain_arrays(
    arrays: list[object], ignore: Collection[int], frameworks: Sequence[ReferenceFinder]
) -> Mapping[int, Explanation]:
    """Return who holds each array, by its id. `ignore` has the ids of the caller's containers."""
    from pytest_gpuleak.explain.explain import explain_crowd  # 25 ms to load; most walks find nothing to explain

    found = explain_crowd(arrays, ignore={id(arrays), *ignore}, budget=Budget(EXPLAIN_STEPS), frameworks=frameworks)
    return {id(array): explanation for array, explanation in zip(arrays, found, strict=True)}


def _worth_a_look(values: list[Any]) -> list[Any]:
    """Return the untracked objects without the most common ones, which hold no array; clear `values`.

    That is a seventh of what the containers of a heap hold.
    """
    left = list(filterfalse(is_tracked, values))
    values.clear()
    for kind in _HOLD_NOTHING:
        left = list(compress(left, map(is_not, map(type, left), repeat(kind))))
    return left


def _of_type(values: list[Any], kind: object) -> list[Any]:
    return list(compress(values, map(is_, map(type, values), repeat(kind))))


def _visible() -> list[Any]:
    untouchable = untouchable_modules()
    return [value for value in get_objects() if type(value) is not ModuleType or id(value) not in untouchable]


def _belongs_to(array_class: type) -> Callable[[type], bool]:
    return lambda kind: is_subclass(kind, array_class)
