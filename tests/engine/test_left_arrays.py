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
