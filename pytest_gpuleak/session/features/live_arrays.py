"""Every live array as plain data, for a report on who holds a device's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.arrays import array_types, framework_of, select_arrays
from pytest_gpuleak.heap.collector import get_objects, whole_heap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuleak.adapters.protocol import ArrayFramework
    from pytest_gpuleak.model.readings import ArrayReading


def live_arrays(frameworks: Sequence[ArrayFramework]) -> Iterator[tuple[int, ArrayReading]]:
    """Read every live array, one by one, with its id: searched on the whole heap, which takes tens of milliseconds."""
    with whole_heap():
        arrays = select_arrays(get_objects(), array_types(frameworks))
    for array in arrays:
        reading = framework_of(array, frameworks).read(array)
        if reading is not None:
            yield id(array), reading


def keep_largest(readings: dict[int, ArrayReading], reading: ArrayReading) -> None:
    """Note a reading by its storage: of arrays that share one, the largest speaks for it."""
    known = readings.get(reading.storage)
    if known is None or known.bytes < reading.bytes:
        readings[reading.storage] = reading
