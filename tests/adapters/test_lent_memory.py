"""Memory that one array lends to another is one storage."""

from __future__ import annotations

from typing import Any

from pytest_gpuleak.adapters.arrays import ALWAYS
from pytest_gpuleak.adapters.bulk import MOST_COMPARED, read_united
from pytest_gpuleak.model.readings import ArrayReading, MemoryRange
from tests.support.standin import StandInArrays


class Array:
    """An array that owns the memory which it shows, or says that it does."""

    def __init__(self, start: int, size: int, storage: int, whole: int | None = None, device: str = "cpu") -> None:
        self.start, self.size, self.storage, self.device = start, size, storage, device
        self.whole = size if whole is None else whole


class Arrays(StandInArrays):
    """Reads `Array`; `tells` whether it knows where the memory is."""

    name = "arrays"
    needs = ALWAYS

    def __init__(self, *, tells: bool = True) -> None:
        self._tells = tells

    def array_type(self) -> type:
        return Array

    def read(self, array: Any) -> ArrayReading | None:
        return ArrayReading(id(array), (array.size,), "uint8", array.device, array.size, array.storage, array.whole)

    def memory(self, array: Any) -> MemoryRange | None:
        return MemoryRange(array.start, array.size) if self._tells and array.start else None


def storages(*arrays: Array, tells: bool = True) -> list[tuple[int, int]]:
    reader: Any = Arrays(tells=tells)
    readings = read_united(arrays, [reader])
    return [(readings[id(array)].storage, readings[id(array)].storage_bytes) for array in arrays]


def test_ranges_that_overlap_are_one_storage() -> None:
    lender, whole, part, other = Array(100, 50, 1), Array(100, 50, 2), Array(120, 10, 3), Array(150, 8, 4)
    assert storages(part, whole, other, lender) == [(2, 50), (2, 50), (4, 8), (2, 50)]


def test_the_owner_tells_the_size() -> None:
    assert storages(Array(100, 50, 1, whole=0), Array(100, 50, 2)) == [(1, 50), (1, 50)]


def test_memory_that_a_device_shares_with_the_host_is_the_devices() -> None:
    reader: Any = Arrays()
    for devices in (("cpu", "mlx"), ("mlx", "cpu")):
        arrays = [Array(100, 50, index, device=device) for index, device in enumerate(devices)]
        assert {reading.device for reading in read_united(arrays, [reader]).values()} == {"mlx"}


def test_storages_that_nothing_is_known_of_stay_apart() -> None:
    assert storages(Array(100, 50, 1), Array(100, 50, 2), tells=False) == [(1, 50), (2, 50)]
    assert storages(Array(0, 50, 1), Array(0, 50, 2)) == [(1, 50), (2, 50)]
    assert storages(Array(100, 50, 1)) == [(1, 50)]


def test_of_very_many_arrays_none_is_compared() -> None:
    found = storages(*(Array(100, 50, index) for index in range(MOST_COMPARED + 1)))
    assert len(set(found)) == MOST_COMPARED + 1


def test_memory_of_an_array_that_cannot_tell_is_its_own() -> None:
    class Failing(Arrays):
        def memory(self, array: Any) -> MemoryRange | None:
            raise RuntimeError("the device is lost")

    reader: Any = Failing()
    arrays = [Array(100, 50, 1), Array(100, 50, 2)]
    assert {one.storage for one in read_united(arrays, [reader]).values()} == {1, 2}
