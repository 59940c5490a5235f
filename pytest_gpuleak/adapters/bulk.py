"""Read and hold many arrays at once, so that a framework's classes and functions are looked up once for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.adapters.arrays import array_types, framework_of, select_arrays
from pytest_gpuleak.heap.collector import get_objects, whole_heap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_gpuleak.adapters.protocol import ArrayFramework, StorageHandle
    from pytest_gpuleak.model.readings import ArrayReading, MemoryRange
    from pytest_gpuleak.model.source_files import Origin


MOST_COMPARED = 1_000
"""Arrays of a test whose addresses are compared: of more, most are one framework's own."""


class Held(NamedTuple):
    """An array's memory, held weakly: the handle, and the array's metadata."""

    handle: StorageHandle
    reading: ArrayReading


def read_arrays(arrays: Iterable[object], frameworks: Sequence[ArrayFramework]) -> dict[int, ArrayReading]:
    """Return the metadata of the arrays that own memory, by id. Raises LookupError for an object that is no array."""
    readings: dict[int, ArrayReading] = {}
    for framework, group in _groups(arrays, frameworks):
        found = framework.read_many(group)
        readings.update((id(array), one) for array, one in zip(group, found, strict=True) if one is not None)
    return readings


def read_united(arrays: Sequence[object], frameworks: Sequence[ArrayFramework]) -> dict[int, ArrayReading]:
    """Like `read_arrays`, with one storage for memory that overlaps, since one array lent it to another (DLPack)."""
    readings = read_arrays(arrays, frameworks)
    if not 1 < len(readings) <= MOST_COMPARED:
        return readings
    known = (array for array in arrays if id(array) in readings)
    ranges = [(memory, id(array)) for array, memory in memory_of_arrays(known, frameworks)]
    ranges.sort(key=lambda found: (found[0].start, -found[0].size))
    end, owner = 0, -1
    for (start, size, _), identity in ranges:
        if start >= end:
            end, owner = start + size, identity
        elif readings[identity].storage != readings[owner].storage:
            pair = readings[owner], readings[identity]
            whole = max(one.storage_bytes for one in pair)
            # A device's memory that the host can read is memory of the CPU to torch and NumPy.
            device = next((one.device for one in pair if one.device != "cpu"), "cpu")
            for one, reading in zip((owner, identity), pair, strict=True):
                readings[one] = reading._replace(storage=pair[0].storage, storage_bytes=whole, device=device)
    return readings


def memory_of_arrays(
    arrays: Iterable[object], frameworks: Sequence[ArrayFramework]
) -> Iterator[tuple[object, MemoryRange]]:
    """Yield the arrays of which it is known where their memory is, with that. Raises LookupError for no array."""
    for framework, group in _groups(arrays, frameworks):
        for array, memory in zip(group, framework.memory_many(group), strict=True):
            if memory is not None and memory.size:
                yield array, memory


def hold_arrays(arrays: Iterable[object], frameworks: Sequence[ArrayFramework]) -> dict[int, StorageHandle]:
    """Return weak handles on the memory of arrays, by id. Raises LookupError for an object that is no array."""
    handles: dict[int, StorageHandle] = {}
    for framework, group in _groups(arrays, frameworks):
        handles.update((id(array), one) for array, one in zip(group, framework.hold_many(group), strict=True))
    return handles


def read_and_hold(arrays: Sequence[object], frameworks: Sequence[ArrayFramework]) -> dict[int, Held]:
    """Read arrays, and hold weakly those that own memory, by id."""
    readings = read_arrays(arrays, frameworks)
    handles = hold_arrays((array for array in arrays if id(array) in readings), frameworks)
    return {identity: Held(handle, readings[identity]) for identity, handle in handles.items()}


def lines_of_arrays(
    arrays: Iterable[object], frameworks: Sequence[ArrayFramework], is_user_file: Callable[[str], bool]
) -> dict[int, Origin]:
    """Return the creating lines that arrays themselves know, by id."""
    lines: dict[int, Origin] = {}
    for framework, group in _groups(arrays, frameworks):
        lines.update(framework.creation_lines(group, is_user_file))
    return lines


def parts_of_arrays(arrays: Iterable[object], frameworks: Sequence[ArrayFramework]) -> set[int]:
    """Return the ids of the arrays that other arrays have made of themselves."""
    found: set[int] = set()
    for framework, group in _groups(arrays, frameworks):
        found |= framework.parts(group)
    return found


def read_live_arrays(frameworks: Sequence[ArrayFramework]) -> Iterator[tuple[int, ArrayReading]]:
    """Walk the whole heap and yield the id and the metadata of each live array that owns memory."""
    with whole_heap():
        arrays = select_arrays(get_objects(), array_types(frameworks))
    for array in arrays:
        reading = framework_of(array, frameworks).read(array)
        if reading is not None:
            yield id(array), reading


def keep_largest(readings: dict[int, ArrayReading], reading: ArrayReading) -> None:
    """Store a reading by its storage; of arrays that share a storage, keep the reading with most bytes."""
    known = readings.get(reading.storage)
    if known is None or known.bytes < reading.bytes:
        readings[reading.storage] = reading


def storages_of(arrays: Iterable[object], frameworks: Sequence[ArrayFramework]) -> dict[int, int]:
    """Return the key of the memory behind each array, by id. Raises LookupError for an object that is no array."""
    keys: dict[int, int] = {}
    for framework, group in _groups(arrays, frameworks):
        keys.update(zip(map(id, group), framework.storage_many(group), strict=True))
    return keys


def _groups(
    arrays: Iterable[object], frameworks: Sequence[ArrayFramework]
) -> Iterator[tuple[ArrayFramework, list[object]]]:
    by_type: dict[int, list[object]] = {}  # by the type's id: the arrays keep their types alive
    array: object = None
    for array in arrays:
        by_type.setdefault(id(type(array)), []).append(array)
    del array  # a search for holders within a group's call would find this generator
    for group in by_type.values():
        yield framework_of(group[0], frameworks), group
