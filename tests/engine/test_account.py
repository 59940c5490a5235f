"""Who left what: the session's account."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.bulk import Held
from pytest_gpuleak.engine.detect.fixture_ownership import OwnedSetup
from pytest_gpuleak.engine.left_behind import MAX_HOLDERS, LeftBehind, OwnedBytes, active_fixtures, owner_of
from pytest_gpuleak.engine.limits import LEAST_SWEPT
from pytest_gpuleak.model.outcomes import FixturePlace
from pytest_gpuleak.model.policy import Policy
from tests.support.standin import Buffer, StandInArrays

if TYPE_CHECKING:
    from pytest_gpuleak.model.readings import ArrayReading

ARRAYS = StandInArrays()
PLACE = FixturePlace("model", "module", "tests/test_model.py", "tests/test_model.py", 3)


def held(buffer: Buffer) -> Held:
    reading = ARRAYS.read(buffer)
    assert reading is not None
    return Held(ARRAYS.hold(buffer), reading)


def note(account: LeftBehind, owner: str, buffer: Buffer, holder: str = "") -> None:
    account.note(owner, held(buffer), holder)


def test_what_is_left_is_summed_by_owner_and_device_with_the_most_bytes_first() -> None:
    account = LeftBehind()
    kept = [Buffer(100), Buffer(50), Buffer(500, "cuda:0"), Buffer(120)]
    for buffer, owner in zip(kept, ("a", "a", "a", "b"), strict=True):
        note(account, owner, buffer)

    assert account.alive() == [
        OwnedBytes("a", "cuda:0", 500, 1),
        OwnedBytes("a", "cpu", 150, 2),
        OwnedBytes("b", "cpu", 120, 1),
    ]


def test_what_dies_is_dropped_and_the_account_keeps_nothing_alive() -> None:
    account = LeftBehind()
    kept, dying = Buffer(100), Buffer(50)
    note(account, "a", kept)
    note(account, "a", dying)
    witness = weakref.ref(dying)

    del dying

    assert witness() is None
    assert account.alive() == [OwnedBytes("a", "cpu", 100, 1)]
    assert len(account) == 1


def test_a_storage_belongs_to_the_first_who_left_it_until_it_dies() -> None:
    account = LeftBehind()
    buffer = Buffer(100)
    note(account, "first", buffer)
    note(account, "second", buffer.view(), "app.CACHE[0]")

    assert account.alive() == [OwnedBytes("first", "cpu", 100, 1, ("app.CACHE[0]",))]


def test_a_key_that_is_used_again_belongs_to_whoever_left_the_new_storage() -> None:
    account = LeftBehind()
    gone, new = Buffer(100), Buffer(60)
    new.memory.address = gone.memory.address
    note(account, "first", gone)
    del gone

    note(account, "second", new)

    assert account.alive() == [OwnedBytes("second", "cpu", 60, 1)]


def test_the_account_does_not_grow_with_what_has_died() -> None:
    account = LeftBehind()
    kept = [Buffer(1) for _ in range(10)]
    for buffer in kept:
        note(account, "kept", buffer)

    for number in range(20 * LEAST_SWEPT):
        note(account, f"test {number}", Buffer(1))

    assert len(account) <= LEAST_SWEPT
    gc.collect()
    assert account.alive() == [OwnedBytes("kept", "cpu", 10, 10)]


def test_holders_come_by_their_bytes_and_only_the_largest_are_named() -> None:
    account = LeftBehind()
    kept = [Buffer(size) for size in (1, 2, 3, 4, 4)]
    for number, buffer in enumerate(kept):
        note(account, "a", buffer, f"holder {min(number, 3)}")

    (left,) = account.alive()

    assert left.holders == ("holder 3", "holder 2", "holder 1")
    assert len(left.holders) == MAX_HOLDERS


def test_a_fixture_still_set_up_has_the_bytes_of_what_is_alive_of_it() -> None:
    setup = OwnedSetup(PLACE, Policy())
    model, view, gone = Buffer(64), Buffer(64), Buffer(1000)
    view = model.view()
    setup.held += [held(buffer) for buffer in (model, view, gone)]
    readings: dict[int, ArrayReading] = {}
    for buffer in (model, gone):
        reading = ARRAYS.read(buffer)
        assert reading is not None
        readings[reading.storage] = reading
    del gone, buffer

    assert active_fixtures([setup], readings) == [
        OwnedBytes("fixture 'model' (module scope, tests/test_model.py)", "cpu", 64, 1)
    ]


def test_a_fixture_without_a_place_is_named_by_its_scope_alone() -> None:
    assert owner_of(FixturePlace("model", "session", "", None, None)) == "fixture 'model' (session scope)"
