"""What settling knows of the suspects while it holds none of them."""

from __future__ import annotations

import gc

import pytest

from pytest_gpuleak.engine.settle.steps import Collection, Settling
from pytest_gpuleak.heap.threads import running_threads
from pytest_gpuleak.heap.weak_references import has_weak_references

pytestmark = pytest.mark.interpreter


class Array:
    """Something that can be referred to weakly."""

    itself: Array


class Slotted:
    """Something that cannot."""

    __slots__ = ()


class Liar(type):
    """A metaclass whose code is not to be asked."""

    @property
    def __weakrefoffset__(cls) -> int:
        raise AssertionError("asked")


class Honest(metaclass=Liar):
    """An instance of the liar."""


def test_which_objects_have_weak_references() -> None:
    assert has_weak_references(Array())
    assert has_weak_references(Honest())
    assert not has_weak_references(Slotted())
    assert not has_weak_references([])


def test_those_that_stay_are_found_and_others_only_known() -> None:
    kept, circle, slotted = Array(), Array(), Slotted()
    circle.itself = circle
    gc.disable()
    try:
        suspects: list[object] = [kept, circle, slotted]
        gone = id(circle)
        settling = Settling(suspects, running_threads())
        assert suspects == []
        del circle
        settling.run([Collection(1)])
    finally:
        gc.enable()
    assert settling.cycles == {gone}
    assert settling.alive == {id(kept), id(slotted)}
    assert [found is kept for found in settling.found()] == [True]
