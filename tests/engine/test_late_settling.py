"""What a late collection frees of the first run's arrays: garbage, or what the re-run has replaced."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuleak.engine.confirm.late_settling import find_doubtful, settle_late
from pytest_gpuleak.engine.confirm.survivors import Leftover
from pytest_gpuleak.model.readings import ArrayReading

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.interpreter


@dataclasses.dataclass
class Frees:
    """A step after which these ids are no longer alive."""

    alive: set[int]
    ids: set[int]
    collects: bool = True
    taken: bool = False

    def steps(self) -> Iterator[None]:
        self.alive -= self.ids
        self.taken = True
        yield


def leftovers(runs: list[tuple[int, int]]) -> dict[int, Leftover]:
    """Arrays by id, of a run and a size each."""
    return {
        index: Leftover(run, ArrayReading(index, (size,), "uint8", "cpu", size, index, size))
        for index, (run, size) in enumerate(runs)
    }


def garbage_of(runs: list[tuple[int, int]], freed: set[int]) -> set[int]:
    left = leftovers(runs)
    alive = set(left)
    settled = settle_late([Frees(alive, freed)], left, lambda: set(alive))
    assert set(left) == alive
    assert settled.collected == freed
    return set(settled.garbage)


@pytest.mark.parametrize(
    ("runs", "freed", "garbage"),
    [
        pytest.param([(0, 8), (1, 8)], {0}, set(), id="replaced one for one"),
        pytest.param([(0, 8), (1, 8)], {0, 1}, {0}, id="garbage of both runs"),
        pytest.param([(0, 8), (1, 16)], {0}, {0}, id="another size"),
        pytest.param([(0, 8), (0, 8), (1, 8)], {0}, {0}, id="one stands beside the re-run's"),
        pytest.param([(0, 8), (0, 8), (1, 8), (1, 8)], {0}, set(), id="one replaced, one kept"),
        pytest.param([(0, 8), (0, 8), (0, 8), (1, 8)], {0, 1, 2}, {1, 2}, id="one replaced of three"),
        pytest.param([(0, 8)], {0}, {0}, id="no re-run yet"),
    ],
)
def test_garbage_of_the_first_run(runs: list[tuple[int, int]], freed: set[int], garbage: set[int]) -> None:
    assert garbage_of(runs, freed) == garbage


@pytest.mark.slow
@given(st.data())
def test_as_many_are_replaced_as_the_re_run_has_more(data: st.DataObject) -> None:
    runs = data.draw(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([8, 16])), max_size=12))
    freed = set(data.draw(st.lists(st.sampled_from(range(len(runs))), unique=True))) if runs else set()
    found = garbage_of(runs, freed)
    assert all(runs[index][0] == 0 for index in found)
    for size in (8, 16):
        kept = Counter(run for index, (run, one) in enumerate(runs) if index not in freed and one == size)
        gone = sum(1 for index in freed if runs[index] == (0, size))
        assert sum(1 for index in found if runs[index][1] == size) == max(gone - max(kept[1] - kept[0], 0), 0)


def test_steps_are_taken_while_anything_is_alive() -> None:
    left = leftovers([(0, 8), (0, 8)])
    alive = set(left)
    first, second, third = Frees(alive, {0}, collects=False), Frees(alive, {1}), Frees(alive, set())
    settled = settle_late([first, second, third], left, lambda: set(alive))
    assert (set(settled.garbage), settled.collected, third.taken) == ({0, 1}, {1}, False)


@pytest.mark.parametrize(
    ("runs", "freed", "sizes"),
    [
        pytest.param([(0, 8), (1, 8)], {0, 1}, {}, id="of both runs"),
        pytest.param([(0, 8), (1, 8), (1, 8), (1, 4)], {1, 2, 3}, {8: 2, 4: 1}, id="of the re-run alone"),
        pytest.param([(0, 8), (1, 8), (1, 8)], {0, 1, 2}, {8: 1}, id="one more of the re-run"),
        pytest.param([(0, 8), (0, 8), (1, 8), (1, 8), (1, 8)], {1, 4}, {8: 1}, id="beside one that is replaced"),
        pytest.param([(0, 8), (0, 8), (1, 8)], {0}, {8: -1}, id="of the first run alone"),
    ],
)
def test_what_a_collection_has_freed_of_the_re_run_alone(
    runs: list[tuple[int, int]], freed: set[int], sizes: dict[int, int]
) -> None:
    left = leftovers(runs)
    alive = set(left)
    settled = settle_late([Frees(alive, freed)], left, lambda: set(alive))
    found = {likeness: count for likeness, count in settled.of_rerun.items() if count}
    assert found == {reading(size).likeness: count for size, count in sizes.items()}


def reading(size: int) -> ArrayReading:
    return ArrayReading(0, (size,), "uint8", "cpu", size, 0, size)


@pytest.mark.parametrize(
    ("dead", "new", "of_rerun", "counterparts", "unlike"),
    [
        pytest.param([8], [8], [], set(), set(), id="replaced"),
        pytest.param([8], [], [], set(), set(), id="released"),
        pytest.param([8], [16], [], set(), {0}, id="another size"),
        pytest.param([8, 16], [16, 4], [], set(), {0}, id="one replaced, one of another size"),
        pytest.param([8], [8], [8], {0}, set(), id="garbage of its size"),
        pytest.param([8, 8], [8], [8], {0}, set(), id="garbage, and one replaced"),
        pytest.param([8, 4], [16], [8], {0}, {1}, id="garbage, and another size"),
    ],
)
def test_what_may_have_been_garbage(
    dead: list[int], new: list[int], of_rerun: list[int], counterparts: set[int], unlike: set[int]
) -> None:
    collected = Counter[object](reading(size).likeness for size in of_rerun)
    found = find_doubtful(dict(enumerate(map(reading, dead))), map(reading, new), collected)
    assert found == (counterparts, unlike)
