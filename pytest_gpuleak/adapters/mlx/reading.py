"""Read MLX's arrays, which are lazy: an array that was not evaluated has no memory, but keeps the inputs of its graph.

``mlx.core.get_array_buffer_size`` (since MLX 0.32) raises for such an array, and counts a shared buffer once. In older
versions every array counts as evaluated, with a buffer of its own. MLX's functions are nanobind's: a mock that a test has
put in the place of one is not called.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.buffer_protocol import memory_of
from pytest_gpuleak.adapters.late import ArrayHandle
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.model.readings import NOT_EVALUATED, ArrayReading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.adapters.late import LateClass
    from pytest_gpuleak.adapters.protocol import Restore, StorageHandle
    from pytest_gpuleak.model.readings import MemoryRange


DEVICE: Final = "mlx"
"""Name of the only device: MLX's arrays lie in memory that the processor and the graphics processor share."""

_PREFIX: Final = "mlx.core."


class MlxReading:
    """Reads arrays of the class that `found` finds, by the class's own properties."""

    def __init__(self, found: LateClass) -> None:
        self._class = found
        self._buffers = Buffers()

    def storage(self, array: object) -> int:
        """Return the key of the buffer behind an array."""
        return self.storage_many([array])[0]

    def storage_many(self, arrays: Sequence[object]) -> list[int]:
        """Return the key of the buffer behind each array; its id if it was not evaluated."""
        return [key for key, _ in self._buffers.of(arrays)]

    def hold(self, array: object) -> StorageHandle:
        """Return a weak hold on an array."""
        return ArrayHandle(self.storage(array), array)

    def read_many(self, arrays: Sequence[object]) -> list[ArrayReading | None]:
        """Return the metadata of each array; None for one without memory to come, and for the generator's state."""
        state = current_key()  # it belongs to no test
        found = []
        for array, (key, size) in zip(arrays, self._buffers.of(arrays), strict=True):
            try:
                found.append(None if array is state else self._read(array, key, size))
            except Exception:  # noqa: BLE001 - nothing is known of an array that cannot tell
                found.append(None)
        return found

    def memory(self, array: object) -> MemoryRange | None:
        """Return where an array's elements are; None before they are computed, and where asking would move them."""
        if self._buffers.of([array])[0][1] is None or call("mlx.core.cuda", "is_available"):
            return None
        return memory_of(array)

    def storage_users(self, array: object) -> int | None:
        """Return None: a view has a reference to its buffer in C++."""
        return None

    def _read(self, array: object, key: int, size: int | None) -> ArrayReading | None:
        nbytes = int(self._get(array, "nbytes"))
        if not nbytes:
            return None
        shape = tuple(int(length) for length in self._get(array, "shape"))
        dtype = str(self._get(array, "dtype")).removeprefix(_PREFIX)
        if size is None:
            return ArrayReading(id(array), shape, dtype + NOT_EVALUATED, DEVICE, 0, key, 0, pending=True)
        return ArrayReading(id(array), shape, dtype, DEVICE, min(nbytes, size), key, size)

    def _get(self, array: object, name: str) -> Any:
        """Read a property as the class has it: a subclass of the user's may define its own."""
        return safe_access.slot(array, self._class.get() or type(array), name)


_MODULE: Final = "mlx.core.random"
_WORD: Final = 32
"""Bits of each of the two numbers that a key consists of: ``mx.random.key(seed)`` splits the seed into them."""


def native(module: str, name: str) -> Any:
    """Return a function of a loaded module of MLX; None if it is not loaded, has no such function, or has a stand-in."""
    function: Any = safe_access.loaded(module, name)
    return function if safe_access.in_package(type(function), "nanobind") else None


def call(module: str, name: str) -> Any:
    """Call a function without arguments; None if there is none, or where a device fails."""
    function = native(module, name)
    try:
        return None if function is None else function()
    except Exception:  # noqa: BLE001 - a failed device: its memory is unknown
        return None


def current_key() -> Any:
    """Return the array that this thread's generator draws from next: each draw makes a new one. None if unknown."""
    state: Any = safe_access.loaded(_MODULE, "state")
    find = native(_MODULE, "__getattr__")  # since MLX 0.32 each thread has a state of its own
    try:
        return (find("state") if state is None else state)[0]
    except Exception:  # noqa: BLE001 - not loaded, or without a state
        return None


def keep_random_state() -> Sequence[Restore]:
    """Note this thread's key as the seed that makes it; return the function that seeds the generator with it."""
    seed = native(_MODULE, "seed")
    if seed is None:
        return ()
    try:
        high, low = current_key().tolist()
    except Exception:  # noqa: BLE001 - no key, or one that a transformation has left behind
        return ()
    return (lambda: seed((high << _WORD) | low),)


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
