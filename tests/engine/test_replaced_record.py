"""Whether a suspect that leaves as much as those before it is run again."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuleak.engine.replaced_record import IN_A_ROW, MOST_KINDS, MOST_WAITING, ReplacedRecord
from pytest_gpuleak.engine.settle.attempts import MOST_TRY_EVERY, TRY_EVERY
from pytest_gpuleak.model.readings import ArrayReading


class Handle:
    """A weak handle on memory that is alive, or has gone."""

    storage = 0

    def __init__(self, *, alive: bool) -> None:
        self.lives = alive

    def alive(self) -> bool:
        return self.lives


GONE: Any = [Handle(alive=False)]


def left(*sizes: int) -> list[ArrayReading]:
    return [ArrayReading(index, (size,), "uint8", "cpu", size, index, size) for index, size in enumerate(sizes)]


def asked(record: ReplacedRecord, *sizes: int, expected_s: float | None = 0.5) -> bool:
    """Tell whether a suspect that has left so much is run again, after a hundred seconds of a session."""
    return not record.why_not(left(*sizes), expected_s, 100.0)


def confirmed(*sizes: int, times: int = 2, rerun_s: float = 6.0) -> ReplacedRecord:
    record = ReplacedRecord()
    for _ in range(times):
        asked(record, *sizes)
        record.note(GONE, rerun_s, grew=False)
    return record


def test_what_two_alike_have_confirmed_is_not_run_again() -> None:
    record = confirmed(8, 8, 4)
    assert not asked(record, 4, 8, 8)
    assert asked(record, 8, 4)
    assert asked(record, 8, 8, 8)


@pytest.mark.parametrize(("times", "expected_s", "again"), [(1, 0.5, True), (1, 2.0, False), (0, 9.0, True)])
def test_one_is_enough_where_a_re_run_is_slow(times: int, expected_s: float, *, again: bool) -> None:
    assert asked(confirmed(8, times=times, rerun_s=12.0), 8, expected_s=expected_s) is again


@pytest.mark.parametrize("rerun_s", [0.1, 2.0])
def test_quick_re_runs_are_all_made(rerun_s: float) -> None:
    assert asked(confirmed(8, rerun_s=rerun_s), 8)


def test_a_re_run_of_unknown_time_is_made() -> None:
    assert asked(confirmed(8), 8, expected_s=None)


def test_what_the_last_one_left_must_have_gone() -> None:
    record = confirmed(8)
    asked(record, 8)
    living: Any = [Handle(alive=False), Handle(alive=True)]
    record.note(living, 0.0, grew=False)
    assert asked(record, 8)


def test_growth_forgets_what_was_confirmed() -> None:
    record = confirmed(8)
    asked(record, 4)
    record.note(GONE, 0.1, grew=True)
    assert asked(record, 8)


def test_one_of_sixteen_is_run_again_all_the_same_and_later_one_of_sixty_four() -> None:
    record = confirmed(8)
    asks = [asked(record, 8) for _ in range(3 * TRY_EVERY + 2 * MOST_TRY_EVERY)]
    assert [count for count, again in enumerate(asks, start=1) if again] == [16, 48, 112, 176]
    record.note(GONE, 0.1, grew=True)
    record.note(GONE, 0.1, grew=False)
    record.note(GONE, 0.1, grew=False)
    assert [asked(record, 8) for _ in range(TRY_EVERY)].index(True) == TRY_EVERY - 1


def test_the_memory_is_bounded() -> None:
    record = ReplacedRecord()
    for size in range(3 * MOST_KINDS):
        asked(record, size)
        record.note(GONE, 0.1, grew=False)
    assert len(record._confirmed) <= MOST_KINDS


def row(record: ReplacedRecord, count: int) -> list[Handle]:
    """Note suspects of different sizes, whose arrays wait for a collection."""
    handles = [Handle(alive=True) for _ in range(count)]
    for size, handle in enumerate(handles, start=8):
        assert asked(record, size)
        living: Any = [handle]
        record.note(living, 1.0, grew=False)
    return handles


def collected(record: ReplacedRecord, handles: list[Handle], size: int) -> bool | None:
    """Return whether a suspect is run again after a collection that frees the handles; None: there was no collection."""
    calls: list[int] = []

    def all_of_it() -> None:
        calls.append(1)
        collect(handles)

    again = not record.why_not(left(size), 0.5, 100.0, all_of_it)
    return again if calls else None


def collect(handles: list[Handle]) -> None:
    for handle in handles:
        handle.lives = False


def test_other_sizes_are_not_run_again_after_a_row_that_has_gone() -> None:
    record = ReplacedRecord()
    handles = row(record, IN_A_ROW)
    assert asked(record, 11)
    collect(handles)
    assert not asked(record, 11)
    waits: Any = [Handle(alive=True)]
    record.note(waits, 0.0, grew=False)
    assert not asked(record, 3)  # what waits for the next collection breaks no row
    assert asked(record, 100)  # over twice the largest of the row


@pytest.mark.parametrize("stays", range(IN_A_ROW - 1))
def test_what_stays_where_a_later_one_has_gone_breaks_the_row(stays: int) -> None:
    record = ReplacedRecord()
    handles = row(record, IN_A_ROW)
    collect([handle for place, handle in enumerate(handles) if place != stays])
    assert asked(record, 11)
    assert asked(record, 12)


def test_a_collection_tells_of_a_row_that_waits() -> None:
    record = ReplacedRecord()
    handles = row(record, IN_A_ROW)
    assert collected(record, handles, 11) is False
    assert collected(record, [], 12) is None


@pytest.mark.parametrize(("count", "size"), [(IN_A_ROW - 1, 11), (IN_A_ROW, 100)], ids=["no row", "larger"])
def test_without_a_row_that_it_would_tell_of_there_is_no_collection(count: int, size: int) -> None:
    record = ReplacedRecord()
    assert collected(record, row(record, count), size) is None


def test_a_collection_saves_a_row_where_a_later_one_has_gone_first() -> None:
    record = ReplacedRecord()
    collect(row(record, IN_A_ROW))
    handles = []
    for _ in range(2):
        assert not asked(record, 11)
        handles.append(Handle(alive=True))
        waits: Any = [handles[-1]]
        record.note(waits, 0.0, grew=False)
    handles[1].lives = False
    assert collected(record, handles, 11) is False


def test_what_stays_where_all_before_had_gone_is_run_again() -> None:
    record = confirmed(8, times=IN_A_ROW)
    assert not asked(record, 9)
    last: Any = [Handle(alive=True)]
    record.note(last, 0.0, grew=False)
    assert asked(record, 9)


def test_no_more_may_wait_than_have_waited_before() -> None:
    record = ReplacedRecord()
    handles = row(record, IN_A_ROW + 3)
    waited = [Handle(alive=True) for _ in range(3)]
    collect(handles)
    for one in waited:  # after a row of which nine waited at once
        assert not asked(record, 11)
        record.note([one], 0.0, grew=False)
    for _ in range(IN_A_ROW + 2 - len(waited)):
        assert not asked(record, 11)
        record.note([Handle(alive=True)], 0.0, grew=False)
    assert not asked(record, 11)
    record.note([Handle(alive=True)], 0.0, grew=False)
    assert asked(record, 11)


def test_what_a_collection_does_not_free_breaks_the_row() -> None:
    record = ReplacedRecord()
    handles = row(record, IN_A_ROW)
    assert collected(record, handles[1:], 11) is True
    assert asked(record, 11)


def test_quick_re_runs_are_worth_no_collection() -> None:
    record = ReplacedRecord()
    handles = []
    for size in range(8, 8 + 2 * IN_A_ROW):
        asked(record, size, expected_s=10.0)
        handles.append(Handle(alive=True))
        waits: Any = [handles[-1]]
        record.note(waits, 0.01, grew=False)
    assert not record.why_not(left(11), 10.0, 100.0, lambda: pytest.fail("a collection"))


def test_growth_breaks_the_row() -> None:
    record = ReplacedRecord()
    collect(row(record, IN_A_ROW))
    assert not asked(record, 11)
    record.note(GONE, 1.0, grew=True)
    assert asked(record, 11)


def test_no_more_wait_than_can_be_followed() -> None:
    record = ReplacedRecord()
    collect(row(record, IN_A_ROW))
    handles: list[Handle] = []
    for size in range(MOST_WAITING + 1):
        asked(record, size)
        handles.append(Handle(alive=True))
        living: Any = [handles[-1]]
        record.note(living, 1.0, grew=False)
    assert asked(record, 11)
    assert len(record._waiting) <= MOST_WAITING
