"""Tell which MLX arrays share a buffer, without evaluating any: views and the arrays that they were made of."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.mlx.native import native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Measure = Callable[[object], int]

MAX_WORK: Final = 500_000
"""Arrays that one call may measure again, in all. Beyond that, arrays count as having buffers of their own."""


class Buffers:
    """Remembers which arrays have which buffer, by weak references. A buffer's key is negative: no array's id."""

    def __init__(self) -> None:
        self._keys: dict[int, tuple[weakref.ref[Any], int, int]] = {}
        self._next = itertools.count(1)

    def of(self, arrays: Sequence[Any]) -> list[tuple[int, int | None]]:
        """Return key and bytes of each buffer, None if not evaluated; before MLX 0.32 the array's id and bytes."""
        measure: Measure | None = native("mlx.core", "get_array_buffer_size")
        if measure is None:
            return [(id(array), int(array.nbytes)) for array in arrays]
        sizes = [_size(measure, array) for array in arrays]
        new: dict[int, list[object]] = {}
        for array, size in zip(arrays, sizes, strict=True):
            if size and self._known(array) is None:
                new.setdefault(size, []).append(array)
        if new:
            self._learn(new, measure)
        found: list[tuple[int, int | None]] = []
        for array, size in zip(arrays, sizes, strict=True):
            known = self._known(array) if size else None
            found.append((id(array) if known is None else known, size))
        return found

    def _known(self, array: object) -> int | None:
        entry = self._keys.get(id(array))
        return entry[1] if entry is not None and entry[0]() is array else None

    def _learn(self, new: dict[int, list[object]], measure: Measure) -> None:
        """Give keys to arrays, by the sizes of their buffers: only buffers of one size may be the same."""
        alive = {identity: entry for identity, entry in self._keys.items() if entry[0]() is not None}
        self._keys = alive
        known: dict[int, list[tuple[object, int]]] = {}
        for reference, key, size in alive.values():
            array = reference()
            if size in new and array is not None:
                known.setdefault(size, []).append((array, key))
        for size, arrays in new.items():
            group = _Group(size, known.get(size, []), measure)
            for array, key in group.sort_in(arrays, self._next):
                self._keys[id(array)] = (weakref.ref(array), key, size)


class _Group:
    """The arrays whose buffers have one size. `members` are one array of each buffer, with its key."""

    def __init__(self, size: int, known: Sequence[tuple[object, int]], measure: Measure) -> None:
        self._size = size
        self._measure = measure
        self._members = list({key: (array, key) for array, key in known}.values())

    def sort_in(self, arrays: Sequence[object], keys: Iterator[int]) -> Iterator[tuple[object, int]]:
        pending = [list(arrays)]
        spent = 0
        while pending:
            part = pending.pop()
            spent += len(part) + len(self._members)
            if spent > MAX_WORK or self._all_differ(part):
                for array in part:
                    key = -next(keys)
                    self._members.append((array, key))
                    yield array, key
            elif len(part) == 1:
                yield part[0], self._key_of(part[0])
            else:
                half = len(part) // 2
                pending += [part[half:], part[:half]]  # the first half is sorted in first

    def _all_differ(self, arrays: Sequence[object]) -> bool:
        one_each = [array for array, _ in self._members]
        return self._measure([*one_each, *arrays]) == self._size * (len(one_each) + len(arrays))

    def _key_of(self, array: object) -> int:
        part = self._members
        while len(part) > 1:
            half = part[: len(part) // 2]
            shares = self._measure([*(one for one, _ in half), array]) == self._size * len(half)
            part = half if shares else part[len(half) :]
        return part[0][1]


def _size(measure: Measure, array: object) -> int | None:
    try:
        return int(measure(array))
    except Exception:  # noqa: BLE001 - not evaluated
        return None
