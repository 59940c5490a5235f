"""What is kept of the arrays that runs of a suspect left."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuleak.adapters.late_arrays import ArrayHandle
from pytest_gpuleak.engine.confirm.left_arrays import LeftArrays
from pytest_gpuleak.engine.confirm.survivors import Leftover
from pytest_gpuleak.model.readings import ArrayReading

pytestmark = pytest.mark.interpreter


class Array:
    pass


class StorageHandle:
    storage = 1

    def alive(self) -> bool:
        return True


def test_handles_that_know_their_arrays_give_them() -> None:
    known, unknown, dead = Array(), Array(), Array()
    left = LeftArrays(())
    handles: dict[int, Any] = {
        id(known): ArrayHandle(id(known), known),
        id(unknown): StorageHandle(),
        id(dead): ArrayHandle(id(dead), dead),
    }
    readings = {key: ArrayReading(key, (1,), "uint8", "cpu", 1, key, 1) for key in handles}
    left.take_in({key: Leftover(0, reading) for key, reading in readings.items()}, handles)
    del dead
    assert list(left.objects(handles)) == [known]
    assert left.living() == {id(known), id(unknown)}


class Framework:
    """Arrays whose memory is known by a number of their own, which may change."""

    def array_type(self) -> type:
        return Array

    def storage(self, array: Any) -> int:
        return int(array.storage)


class Hold:
    def __init__(self, storage: int, *, alive: bool = True) -> None:
        self.storage = storage
        self.lives = alive

    def alive(self) -> bool:
        return self.lives


@pytest.fixture
def array() -> Any:
    value: Any = Array()
    value.storage = 7
    return value


def left_by_first_run(array: Any, hold: Hold) -> LeftArrays:
    frameworks: Any = [Framework()]
    left = LeftArrays(frameworks)
    reading = ArrayReading(id(array), (1,), "uint8", "cpu", 1, hold.storage, 1)
    left.take_in({id(array): Leftover(0, reading)}, {id(array): hold})
    return left


def test_a_young_array_is_known_by_its_memory(array: Any) -> None:
    left = left_by_first_run(array, Hold(7))
    assert left.choose_left([array, Array()], {id(array)}) == [array]


@pytest.mark.parametrize("hold", [Hold(7, alive=False), Hold(8)], ids=["dead", "other memory"])
def test_a_young_array_at_the_address_of_a_dead_one_was_not_left(array: Any, hold: Hold) -> None:
    assert left_by_first_run(array, hold).choose_left([array], {id(array)}) == []


def test_an_old_array_may_have_changed_its_memory(array: Any) -> None:
    left = left_by_first_run(array, Hold(8, alive=False))
    assert left.choose_left([array], set()) == [array]
    left.expect_run()  # the search has met it
    assert left.choose_left([array], set()) == [array]


def test_what_has_died_before_a_run_is_not_met_after_it(array: Any) -> None:
    hold = Hold(8)
    left = left_by_first_run(array, hold)
    hold.lives = False
    left.expect_run()
    assert left.choose_left([array], set()) == []
    left.take_in(left_by_first_run(array, Hold(7)).by_id, {id(array): Hold(7)})
    assert left.choose_left([array], set()) == [array]
