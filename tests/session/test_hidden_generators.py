"""NumPy's generators are found again without a walk over the heap; none is kept alive, and no class runs code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.session.rerun.unseen.hidden_generators import HiddenGenerators

if TYPE_CHECKING:
    from collections.abc import Iterator

np = pytest.importorskip("numpy")


class Hostile:
    """Holds a generator in a list."""

    def __init__(self, generator: Any) -> None:
        self.generators = [generator]

    def __hash__(self) -> int:
        raise AssertionError("a user's object was hashed")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a user's object was compared")


GENERATOR: Any = None
HOLDER: Any = None


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Leave nothing in the globals."""
    global GENERATOR, HOLDER
    yield
    GENERATOR = HOLDER = None


def walked_twice(*generators: Any) -> HiddenGenerators:
    hidden = HiddenGenerators()
    assert hidden.note_walk(list(generators))
    assert hidden.alive(()) is None, "no place is known after one walk"
    assert hidden.note_walk(list(generators))
    return hidden


def same(found: list[Any] | None, *expected: Any) -> bool:
    return found is not None and sorted(map(id, found)) == sorted(map(id, expected))


def test_generators_are_found_where_they_were() -> None:
    global GENERATOR, HOLDER
    GENERATOR, HOLDER = np.random.default_rng(0), Hostile(np.random.RandomState(0))
    hidden = walked_twice(GENERATOR, HOLDER.generators[0])
    assert same(hidden.alive(()), GENERATOR, HOLDER.generators[0])


def test_a_new_generator_is_found_where_an_earlier_one_was() -> None:
    global HOLDER
    HOLDER = Hostile(np.random.default_rng(0))
    hidden = walked_twice(HOLDER.generators[0])
    HOLDER.generators = [np.random.default_rng(1)]  # a new list too, as a library does that is seeded again
    assert hidden.note(HOLDER.generators)
    assert same(hidden.alive(()), HOLDER.generators[0])


def test_a_generator_that_is_gone_is_not_looked_for() -> None:
    hidden = walked_twice(np.random.default_rng(0))
    assert hidden.alive(()) == []


def test_a_generator_elsewhere_calls_for_a_walk_and_is_no_longer_missed_once_at_hand() -> None:
    global GENERATOR
    GENERATOR = np.random.default_rng(0)
    hidden = walked_twice(GENERATOR)
    other = [np.random.default_rng(1)]
    assert hidden.note(other)
    assert hidden.alive(()) is None
    assert same(hidden.alive(other), GENERATOR, other[0])


def test_what_has_no_known_lock_calls_for_walks() -> None:
    hidden = HiddenGenerators()
    assert not hidden.note([object()])
    assert not hidden.note_walk([object()])


def test_a_generator_in_a_frame_of_a_failed_test_calls_for_no_more_walks() -> None:
    def draw() -> None:
        generator = np.random.RandomState(0)
        raise ValueError(generator.rand())

    with pytest.raises(ValueError) as failed:  # noqa: PT011 - any number
        draw()
    place = failed.tb.tb_next
    assert place is not None
    hidden = HiddenGenerators()
    for _ in range(2):
        found = [place.tb_frame.f_locals["generator"]]
        assert hidden.note_walk(found)
        found.clear()
    assert hidden.alive(()) == []
