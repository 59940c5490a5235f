"""When memory on a device is on its way out: a rule over readings, which are passed in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuleak.adapters.nvml.readings import NvmlReading, ProcessMemory
from pytest_gpuleak.engine.limits import LEAST_OCCUPIED, STEADY_READINGS
from pytest_gpuleak.engine.settle.device_wait import Holding, Remains, Standing, compare, tell_state

GIB = 1 << 30
SIZES = st.integers(0, 80 * GIB)
LARGE = st.integers(LEAST_OCCUPIED, 80 * GIB)
SMALL = st.integers(0, LEAST_OCCUPIED - 1)
HOLDINGS = st.builds(Holding, st.integers(1, 99), SIZES, st.booleans())
REMAINS = st.builds(Remains, SIZES, st.lists(HOLDINGS, max_size=3).map(tuple), SIZES, SIZES)


def child(size: int) -> Remains:
    return Remains(processes=(Holding(7, size, ending=False),))


@given(st.lists(REMAINS, min_size=1, max_size=12))
def test_it_waits_while_the_driver_is_to_give_something_back(readings: list[Remains]) -> None:
    if readings[-1].is_leaving:
        assert tell_state(readings) == "leaving"


@given(st.lists(REMAINS, max_size=12), SMALL, SMALL, SMALL, SMALL, st.booleans())
def test_less_than_matters_is_gone(
    readings: list[Remains], here: int, size: int, unlisted: int, unmatched: int, ending: bool
) -> None:
    last = Remains(here, (Holding(7, size, ending),), unlisted, unmatched)
    assert tell_state([*readings, last]) == "gone"


@given(LARGE, st.sampled_from([child, Remains, lambda size: Remains(unmatched=size)]))
def test_what_stays_the_same_is_held_after_a_second_and_not_before(size: int, make: type[Remains]) -> None:
    readings = [make(size)] * (STEADY_READINGS + 1)
    assert tell_state(readings) == "held"
    assert all(tell_state(readings[:number]) == "leaving" for number in range(1, STEADY_READINGS + 1))


@given(st.lists(LARGE, min_size=1, max_size=20, unique=True))
def test_what_falls_each_time_is_waited_for(sizes: list[int]) -> None:
    falling = [child(size) for size in sorted(sizes, reverse=True)]
    assert all(tell_state(falling[:number]) == "leaving" for number in range(1, len(falling) + 1))


@given(st.lists(LARGE, min_size=STEADY_READINGS + 1, max_size=20))
def test_what_grows_or_goes_up_and_down_is_held_where_no_reading_is_lower(sizes: list[int]) -> None:
    lowest_first = [min(sizes), *sizes][: STEADY_READINGS + 1]
    assert tell_state([child(size) for size in lowest_first]) == "held"


@given(st.lists(LARGE, min_size=1, max_size=30))
def test_it_ends_for_living_processes(sizes: list[int]) -> None:
    """Whatever they do for a while: once they hold the same for a second, nothing is waited for."""
    assert tell_state([*map(child, sizes), *[child(sizes[-1])] * (STEADY_READINGS + 1)]) == "held"


def reading(
    used: int | None, own: int | None, *others: tuple[int, int | None], children: tuple[tuple[int, int], ...] = ()
) -> NvmlReading:
    return NvmlReading(
        "GPU-a",
        "Test GPU",
        80 * GIB,
        used,
        own,
        tuple(ProcessMemory(*row) for row in children),
        tuple(ProcessMemory(*row) for row in others),
    )


IDLE = reading(GIB, 0)
LEFT: dict[int, Standing] = {7: "left"}


@pytest.mark.parametrize(
    ("before", "now", "standings", "remains"),
    [
        (IDLE, IDLE, {}, Remains()),
        # Listed processes are those of this run, whatever was in use before.
        (IDLE, reading(4 * GIB, 0, children=((7, 3 * GIB),)), LEFT, Remains(processes=(Holding(7, 3 * GIB, False),))),
        (IDLE, reading(4 * GIB, 0, (7, 3 * GIB)), {7: "ending"}, Remains(processes=(Holding(7, 3 * GIB, True),))),
        (IDLE, reading(4 * GIB, 0, children=((7, 3 * GIB),)), {7: "apart"}, Remains()),
        # Another's, and this process's own, are none of what was left.
        (IDLE, reading(4 * GIB, 0, (9, 3 * GIB)), {}, Remains()),
        (IDLE, reading(4 * GIB, 3 * GIB), {}, Remains()),
        # No process has it: what was so before the test is not the test's.
        (IDLE, reading(4 * GIB, 0), {}, Remains(unlisted=3 * GIB)),
        (reading(4 * GIB, 0), reading(4 * GIB, 0), {}, Remains()),
        (reading(4 * GIB, 0, children=((7, 3 * GIB),)), reading(4 * GIB, 0), {}, Remains(unlisted=3 * GIB)),
        (reading(9 * GIB, 0), reading(4 * GIB, 0), {}, Remains()),
        # A figure that is missing accuses nobody.
        (IDLE, reading(4 * GIB, 0, (9, None)), {}, Remains()),
        (IDLE, reading(None, 0), {}, Remains()),
        (reading(None, 0), IDLE, {}, Remains()),
        (IDLE, reading(None, None), {}, Remains()),
        # Pids that cannot be told: the total alone.
        (reading(GIB, None), reading(4 * GIB, None, (9, 3 * GIB)), {}, Remains(unmatched=3 * GIB)),
    ],
)
def test_what_was_left(before: NvmlReading, now: NvmlReading, standings: dict[int, Standing], remains: Remains) -> None:
    assert compare(before, now, standings) == remains


@pytest.mark.parametrize(
    ("had", "used", "have", "standings", "remains"),
    [
        # What a fixture's helper takes or lets go of meanwhile is in the total, and is no test's.
        (((7, GIB),), 4, ((7, 2 * GIB),), {7: "apart"}, Remains(unmatched=GIB)),
        (((7, GIB),), 1, ((7, 0),), {7: "apart"}, Remains(unmatched=0)),
        # What a test's own holds is told of it, and not of the total again.
        (((7, GIB),), 4, ((7, 3 * GIB),), LEFT, Remains(processes=(Holding(7, 3 * GIB, False),))),
        # The first use brings a context of unknown size.
        ((), 4, ((7, 2 * GIB),), LEFT, Remains(processes=(Holding(7, 2 * GIB, False),))),
        # What one had that has ended, the driver is to give back.
        (((7, 2 * GIB), (8, GIB)), 3, ((8, 0),), {}, Remains(unlisted=2 * GIB, unmatched=2 * GIB)),
        (((7, 2 * GIB),), 1, (), {}, Remains(unlisted=GIB)),
        (((7, 2 * GIB),), 0, (), {}, Remains()),
    ],
)
def test_what_was_left_where_agents_tell_what_children_have(
    had: tuple[tuple[int, int], ...],
    used: int,
    have: tuple[tuple[int, int], ...],
    standings: dict[int, Standing],
    remains: Remains,
) -> None:
    before, now = reading(2 * GIB, None, children=had), reading(used * GIB, None, children=have)
    assert compare(before, now, standings) == remains
    assert compare(before, now, standings, own_growth=None) == Remains(processes=remains.processes)


def test_what_this_process_has_reserved_is_no_growth_of_the_total() -> None:
    before, now = reading(GIB, None), reading(4 * GIB, None)
    assert compare(before, now, {}, own_growth=2 * GIB) == Remains(unmatched=GIB)
    assert compare(before, now, {}, own_growth=None) == Remains()
    assert compare(before, now, {}, here=GIB, own_growth=None) == Remains(here=GIB)
