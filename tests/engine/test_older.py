"""The arrays that are older than a test: what a run lets go of them, it did not add."""

from __future__ import annotations

import types
import weakref
from contextlib import nullcontext
from typing import Any

import pytest

from pytest_gpuleak.adapters.bulk import Held
from pytest_gpuleak.engine.left_behind import LeftBehind
from pytest_gpuleak.engine.limits import LEAST_NETTED
from pytest_gpuleak.engine.older import OlderArrays
from tests.support.standin import Buffer, Memory, StandInArrays

ARRAYS = StandInArrays()
DETECTOR: Any = types.SimpleNamespace(whole_heap=nullcontext)


def held(buffer: Buffer) -> Held:
    reading = ARRAYS.read(buffer)
    assert reading is not None
    return Held(ARRAYS.hold(buffer), reading)


class Session:
    """A session in which earlier tests `leave` buffers, and a wider fixture has made `of_fixture`."""

    def __init__(self) -> None:
        self.account = LeftBehind()
        self.of_fixture: list[Held] = []
        ownership: Any = types.SimpleNamespace(active=[types.SimpleNamespace(held=self.of_fixture)])
        self.ownership = ownership
        self.older = OlderArrays(self.account, ownership)

    def leave(self, *buffers: Buffer) -> None:
        for buffer in buffers:
            self.account.note("test_earlier.py::test_one", held(buffer), "")


@pytest.fixture
def session() -> Session:
    return Session()


def test_what_a_run_lets_go_is_told_by_device(session: Session) -> None:
    sizes = (LEAST_NETTED, 2 * LEAST_NETTED, 4 * LEAST_NETTED)
    kept = [Buffer(sizes[0]), Buffer(sizes[1]), Buffer(sizes[2], "cuda:0"), Buffer(LEAST_NETTED)]
    session.leave(*kept)
    session.older.begin_test()
    assert session.older.let_go(()) == {}
    del kept[:3]
    assert session.older.let_go(()) == {"cpu": sizes[0] + sizes[1], "cuda:0": sizes[2]}


def test_what_a_re_run_lets_go_is_not_counted(session: Session) -> None:
    kept = [Buffer(LEAST_NETTED), Buffer(LEAST_NETTED)]
    session.leave(*kept)
    session.older.begin_test()
    of_reruns = {kept[1].memory.address}
    kept.clear()
    assert session.older.let_go(of_reruns) == {"cpu": LEAST_NETTED}


def test_letting_go_what_is_there_because_a_test_was_run_again_is_no_credit(session: Session) -> None:
    kept = [Buffer(LEAST_NETTED), Buffer(LEAST_NETTED)]
    session.leave(kept[0])
    session.account.note("test_earlier.py::test_one", held(kept[1]), of_rerun=True, extra=True)
    session.older.begin_test()
    kept.clear()
    assert session.older.let_go(()) == {"cpu": LEAST_NETTED}


@pytest.mark.parametrize("first", [0, 1])
def test_which_of_equal_arrays_is_there_because_of_a_re_run_does_not_matter(session: Session, first: int) -> None:
    """A slot has the array of the last run: the next test was failed for replacing it."""
    kept = [Buffer(LEAST_NETTED), Buffer(LEAST_NETTED)]
    for number in range(2):
        session.account.note("test_earlier.py::test_one", held(kept[number]), of_rerun=True, extra=number == 1)
    for credit in ({"cpu": LEAST_NETTED}, {}):
        session.older.begin_test()
        del kept[first % len(kept)]
        assert session.older.let_go(()) == credit


def test_small_arrays_are_not_followed(session: Session) -> None:
    kept = [Buffer(LEAST_NETTED - 1)]
    session.leave(*kept)
    session.older.begin_test()
    kept.clear()
    assert session.older.let_go(()) == {}


def test_what_was_gone_before_the_test_is_no_credit_of_its(session: Session) -> None:
    kept = [Buffer(LEAST_NETTED), Buffer(LEAST_NETTED)]
    session.leave(*kept)
    del kept[0]
    session.older.begin_test()
    del kept[0]
    assert session.older.let_go(()) == {"cpu": LEAST_NETTED}
    session.older.begin_test()
    assert session.older.let_go(()) == {}


def test_what_came_after_the_tests_begin_is_no_older_array(session: Session) -> None:
    session.older.begin_test()
    buffer = Buffer(LEAST_NETTED)
    session.leave(buffer)
    del buffer
    assert session.older.let_go(()) == {}


def test_a_wider_fixtures_arrays_are_older(session: Session) -> None:
    buffer = Buffer(LEAST_NETTED, "cuda:0")
    session.of_fixture.append(held(buffer))
    session.older.begin_test()
    assert [one.handle.storage for one in session.older.all()] == [buffer.memory.address]
    del buffer
    assert session.older.let_go(()) == {"cuda:0": LEAST_NETTED}
    assert session.older.all() == []


def test_what_is_there_before_the_first_test_is_met_by_one_look(session: Session) -> None:
    large, small = Buffer(LEAST_NETTED), Buffer(64)
    later: list[Buffer] = []
    assert not session.older.is_complete
    session.older.look(DETECTOR, [ARRAYS])
    assert session.older.is_complete
    later.append(Buffer(LEAST_NETTED))
    found = {one.handle.storage for one in session.older.all()}
    assert {large.memory.address, small.memory.address} <= found
    assert later[0].memory.address not in found
    session.older.begin_test()
    del large
    assert session.older.let_go(()) == {"cpu": LEAST_NETTED}


def test_without_a_framework_the_heap_is_not_walked(session: Session) -> None:
    walked = []
    detector: Any = types.SimpleNamespace(whole_heap=lambda: walked.append(1))
    session.older.look(detector, ())
    assert (walked, session.older.is_complete, session.older.all()) == ([], True, [])


def test_each_storage_is_followed_once(session: Session) -> None:
    buffer = Buffer(LEAST_NETTED)
    session.leave(buffer)
    session.of_fixture.append(held(buffer.view()))
    session.older.look(DETECTOR, [ARRAYS])
    storages = [one.handle.storage for one in session.older.all()]
    assert storages.count(buffer.memory.address) == 1


def test_nothing_is_kept_alive(session: Session) -> None:
    buffer = Buffer(LEAST_NETTED)
    witness = weakref.ref(buffer)
    session.leave(buffer)
    session.older.look(DETECTOR, [ARRAYS])
    session.older.begin_test()
    del buffer
    assert witness() is None


def test_what_goes_in_the_teardown_of_a_wider_fixture_is_no_credit(session: Session) -> None:
    kept = [Buffer(LEAST_NETTED) for _ in range(5)]
    session.leave(*kept)
    session.older.begin_test()
    kept.pop()
    session.older.teardown_begins()
    kept.pop()
    session.older.teardown_begins()  # of a fixture that it uses
    kept.pop()
    session.older.teardown_ends()
    kept.pop()
    session.older.teardown_ends()
    assert session.older.let_go(()) == {"cpu": LEAST_NETTED}
    kept.pop()
    assert session.older.let_go(()) == {"cpu": 2 * LEAST_NETTED}


def test_garbage_of_a_fixture_that_was_torn_down_is_no_credit(session: Session) -> None:
    buffer = Buffer(LEAST_NETTED)
    session.of_fixture.append(held(buffer))
    session.older.begin_test()
    session.ownership.active.clear()
    del buffer
    assert session.older.let_go(()) == {}


def test_what_has_gone_is_not_asked_for_at_each_later_test(session: Session) -> None:
    """Memory of the same address takes the place of an entry, so the account's own sweep may never come."""
    for _ in range(3):
        memory = Memory(LEAST_NETTED)
        memory.address = -1
        session.leave(Buffer(memory=memory))
        del memory
    kept = Buffer(LEAST_NETTED)
    session.leave(kept)
    assert [one.handle.storage for _, one in session.account.large()] == [kept.memory.address]
