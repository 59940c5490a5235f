"""The objects made last, and which of them refer to what."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.heap import recent_objects
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.recent_objects import RecentObjects
from pytest_gpuleak.heap.referrers import PausedCollector

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.skipif(not hasattr(sys, "getrefcount"), reason="objects have no reference counts here"),
]


class Owner:
    def __init__(self, value: object) -> None:
        self.value = [value]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(recent_objects, "WORTH_IT", 0)
    gc.collect(0)
    gc.disable()  # on 3.14 a collection moves survivors into the middle of the list
    yield
    gc.enable()


def referrers_of(objects: dict[int, object], *, without: object = None) -> tuple[list[object], set[int]]:
    with PausedCollector():
        recent = RecentObjects({id(objects), id(without)}, Budget(10**9))
        return recent.referrers(set(objects), objects)


def test_what_recent_objects_alone_refer_to_needs_no_pass_over_the_heap() -> None:
    owner = Owner(object())
    objects: dict[int, object] = {id(owner.value[0]): owner.value[0]}
    found, complete = referrers_of(objects)
    assert [value for value in found if value is owner.value] == [owner.value]
    assert complete == set(objects)


def test_a_container_that_refers_twice_is_found_once() -> None:
    value = object()
    container = [value, value]
    objects = {id(value): value}
    del value
    found, complete = referrers_of(objects)
    assert sum(one is container for one in found) == 1
    assert complete == set(objects)


def test_a_variable_of_a_running_function_is_one_reference_too_many() -> None:
    value = object()
    container = [value]
    _found, complete = referrers_of({id(value): value})
    assert complete == set()
    assert container


def test_an_object_that_something_old_refers_to_is_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    old = [object()]
    between: list[Any] = [[] for _ in range(100)]
    young = [old[0]]
    objects = {id(old[0]): old[0]}
    monkeypatch.setattr(recent_objects, "AT_AN_END", 10)
    monkeypatch.setattr(recent_objects, "get_objects", lambda: [young, *between, []])
    found, complete = referrers_of(objects)
    assert found == [young]
    assert complete == set()


def test_what_nothing_recent_refers_to_is_incomplete() -> None:
    value = object()
    holder = Owner(value)
    del value
    objects: dict[int, object] = {id(holder.value[0]): holder.value[0]}
    found, complete = referrers_of(objects, without=holder.value)
    assert found == []
    assert complete == set()


@pytest.mark.parametrize("value", [None, True, int, "interned"])
def test_what_is_never_freed_is_incomplete(value: object) -> None:
    container = [value]
    _found, complete = referrers_of({id(value): value})
    assert complete == set()
    assert container


def test_no_frame_is_kept() -> None:
    def suspended() -> Any:
        yield sys._getframe()

    running = suspended()
    frame = next(running)
    with PausedCollector():
        recent = RecentObjects(set(), Budget(10**9))
    assert not any(value is frame for value in recent.objects)


def test_a_small_heap_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_objects, "WORTH_IT", 1 << 40)
    owner = Owner(object())
    objects: dict[int, object] = {id(owner.value[0]): owner.value[0]}
    assert referrers_of(objects) == ([], set())
