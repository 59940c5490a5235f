"""Objects of the same types as last time are recognised without a look at what a type defines."""

from __future__ import annotations

from typing import NoReturn

from pytest_gpuleak.heap.last_types import LastTypes


class Refuses(type):
    def __eq__(cls, other: object) -> NoReturn:
        raise RuntimeError("user code")

    __hash__ = None  # type: ignore[assignment]


class Strange(metaclass=Refuses):
    pass


def test_the_types_and_their_order_count() -> None:
    last = LastTypes()
    last.remember([dict, list])
    assert last.match([{1: 2}, []])
    assert not last.match([[], {}])
    assert not last.match([{}])
    assert not last.match([{}, [], []])
    assert not last.match([{}, True])


def test_nothing_is_like_no_look_at_all() -> None:
    assert LastTypes().match([])
    assert not LastTypes().match([1])


def test_no_user_code_runs() -> None:
    last = LastTypes()
    last.remember([dict, Strange])
    assert not last.match([Strange(), {}])
    assert last.match([{}, Strange()])
