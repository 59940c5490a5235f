"""Tests that leave many arrays: four times as many cost about four times as much, whatever they hang on."""

from __future__ import annotations

import collections
import contextvars
import functools
import sys
import tracemalloc
import types
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.numpy.bases import array_bases
from pytest_gpuleak.explain import large_objects, search
from pytest_gpuleak.explain.edge_to_edit import MAX_EDGES
from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.explain.large_objects import LargeObjects
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.walk import Sizes
from tests.support.calls import Calls

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.explain.search import Explanation

pytestmark = [pytest.mark.interpreter, pytest.mark.slow, pytest.mark.usefixtures("small_heap")]

FEW, MANY = 300, 1_200
"""From 256 on the heap is walked in Python, where each step is a call (`referrers.SCAN_FROM`)."""


class Thing:
    """Stands for a tensor."""


class Node:
    """An object with attributes of its own."""

    def __init__(self, **values: object) -> None:
        vars(self).update(values)


class Slotted:
    __slots__ = ("value",)


for number in range(2_000):
    setattr(Slotted, f"method{number}", number)


def in_list(app: Any, things: list[Thing]) -> None:
    app.HELD = list(things)


def in_deque(app: Any, things: list[Thing]) -> None:
    app.HELD = collections.deque(things)


def in_dict(app: Any, things: list[Thing]) -> None:
    app.HELD = {f"k{index}": thing for index, thing in enumerate(things)}


def in_set(app: Any, things: list[Thing]) -> None:
    app.HELD = set(things)


def as_keys(app: Any, things: list[Thing]) -> None:
    app.HELD = dict.fromkeys(things)


def in_linked_list(app: Any, things: list[Thing]) -> None:
    head = None
    for thing in things:
        head = Node(value=thing, next=head)
    app.HELD = head


def in_tree(fan_out: int) -> Callable[[Any, list[Thing]], None]:
    def build(app: Any, things: list[Thing]) -> None:
        nodes = [Node(value=thing, below=[]) for thing in things]
        for index in range(1, len(nodes)):
            vars(nodes[(index - 1) // fan_out])["below"].append(nodes[index])
        app.HELD = nodes[0]

    return build


def in_records(app: Any, things: list[Thing]) -> None:
    app.HELD = {f"part{start}": [{"x": thing} for thing in things[start::100]] for start in range(100)}


def in_objects(app: Any, things: list[Thing]) -> None:
    app.HELD = [Node(loss=thing, step=1) for thing in things]


def in_one_object(app: Any, things: list[Thing]) -> None:
    app.HELD = types.SimpleNamespace(**{f"a{index}": thing for index, thing in enumerate(things)})


def in_slots(app: Any, things: list[Thing]) -> None:
    app.HELD = []
    for thing in things:
        app.HELD.append(Slotted())
        app.HELD[-1].value = thing


def in_cache(app: Any, things: list[Thing]) -> None:
    app.HELD = functools.lru_cache(None)(lambda index: things[index])
    for index in range(len(things)):
        app.HELD(index)


def in_cache_keys(app: Any, things: list[Thing]) -> None:
    app.HELD = functools.lru_cache(len(things))(lambda _: None)
    for thing in things:
        app.HELD(thing)


def in_globals(app: Any, things: list[Thing]) -> None:
    for index, thing in enumerate(things):
        setattr(app, f"HELD{index}", thing)


def in_class(app: Any, things: list[Thing]) -> None:
    for index, thing in enumerate(things):
        setattr(app.Attention, f"held{index}", thing)


def in_exceptions(app: Any, things: list[Thing]) -> None:
    app.HELD = [ValueError(thing) for thing in things]


def in_closures(app: Any, things: list[Thing]) -> None:
    app.HELD = [lambda thing=thing: thing for thing in things]


def in_context(app: Any, things: list[Thing]) -> None:
    app.HELD = contextvars.Context()
    for index, thing in enumerate(things):
        app.HELD.run(contextvars.ContextVar[object](f"v{index}").set, thing)


def with_many_parents(app: Any, things: list[Thing]) -> None:
    app.HELD = [list(things) for _ in range(10)]


SHAPES = [
    in_list, in_deque, in_dict, in_set, as_keys, in_linked_list, in_tree(10), in_tree(2), in_records, in_objects,
    in_one_object, in_slots, in_cache, in_cache_keys, in_globals, in_class, in_exceptions, in_closures, in_context,
    with_many_parents,
]  # fmt: skip


def explained(app: Any, shape: Callable[[Any, list[Thing]], None], count: int) -> tuple[int, list[Explanation]]:
    """Calls that the search made, and what it found."""
    targets = [Thing() for _ in range(count)]
    shape(app, targets)
    frame = {id(sys._getframe())}
    with Calls() as calls:
        found = explain(targets, ignore=frame)
    vars(app).pop("HELD", None)
    return calls.count, found


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__qualname__.replace(".<locals>", ""))
def test_four_times_as_many_cost_four_times_as_much(app: Any, shape: Callable[[Any, list[Thing]], None]) -> None:
    few, _ = explained(app, shape, FEW)
    many, found = explained(app, shape, MANY)
    assert many < 5.6 * few  # a tree's paths are a fourth longer, too
    # Of a class too, whose attributes are roots of their own.
    assert {explanation.holder.root.rstrip("0123456789") for explanation in found} <= {
        "leaky_app.HELD",
        "leaky_app.Attention.held",
    }


def test_long_paths_are_written_in_full_for_the_first_and_by_their_ends_for_the_rest(app: Any) -> None:
    _, found = explained(app, in_linked_list, 3_000)
    texts = {len(explanation.holder.path) for explanation in found}
    assert max(texts) > MAX_EDGES  # in full, or with the first and the last hundred edges
    deepest = found[0].holder
    assert deepest.text == "leaky_app.HELD" + ".next" * 4 + " … 2992 more … " + ".next" * 3 + ".value"
    assert found[-1].holder.text == "leaky_app.HELD.value"
    assert len({explanation.pattern for explanation in found}) == 3_000
    for explanation in found:
        shown = "".join(step.edge for step in explanation.holder.path)
        assert len(explanation.holder.path) > MAX_EDGES or explanation.holder.text == explanation.holder.root + shown


def test_like_entries_share_a_pattern(app: Any) -> None:
    _, found = explained(app, in_objects, 3_000)
    assert {explanation.pattern for explanation in found} == {"leaky_app.HELD[*].loss"}
    assert found[2_999].holder.text == "leaky_app.HELD[2999].loss"


def test_without_a_budget_to_write_the_root_is_told(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.Search, "_steps_to_write", lambda _: Budget(20_000))
    _, found = explained(app, in_list, 3_000)
    assert {explanation.holder.root for explanation in found} == {"leaky_app.HELD"}
    assert found[-1].holder.text.startswith("leaky_app.HELD … (not explained in full")
    assert found[0].holder.text == "leaky_app.HELD[0]"


def test_when_the_budget_is_spent_long_paths_are_not_followed_any_more(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search.Search, "_steps_to_write", lambda _: Budget(0))
    few, _ = explained(app, in_linked_list, FEW)
    many, found = explained(app, in_linked_list, 2 * MANY)
    assert many < 9.6 * few
    assert {explanation.holder.root for explanation in found} == {"leaky_app.HELD"}


def test_what_the_search_had_no_budget_for_says_so(app: Any) -> None:
    app.HELD = [Thing() for _ in range(2_000)]
    found = explain(app.HELD, budget=Budget(0))
    assert {explanation.holder.root for explanation in found} == {
        "unknown (not explained in full: the search met its limit of objects)"
    }


def test_more_containers_than_a_level_takes_in_are_explained_where_each_holds_its_own(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_WIDTH", 100)
    _, found = explained(app, in_records, 3_000)
    assert {explanation.holder.root for explanation in found} == {"leaky_app.HELD"}


LONG = "n" * 1_000_000


def under_long_names(app: Any) -> list[Thing]:
    """Targets below names that are a million characters long."""
    targets = [Thing() for _ in range(400)]
    kind = type(LONG, (), {"held": targets[0]})
    kind.__module__ = LONG
    app.LONG_CLASS = [kind]
    app.LONG_KEYS = {(LONG, index): target for index, target in enumerate(targets[1:100])}
    app.LONG_ATTRIBUTES = []
    for target in targets[100:398]:
        value: Any = kind()
        vars(value)[LONG] = target
        app.LONG_ATTRIBUTES.append(value)
    vars(app)[LONG] = targets[398]
    app.LONG_FUNCTION = {closing_over(targets[399]): 1}
    return targets


def closing_over(target: Thing) -> Callable[[], Thing]:
    def function() -> Thing:
        return target

    function.__qualname__ = function.__module__ = ".".join(LONG)
    return function


def test_names_of_any_length_are_cut(app: Any) -> None:
    targets = under_long_names(app)
    tracemalloc.start()
    found = explain(targets, ignore={id(sys._getframe())})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * 2**20  # bytes, of which 6 are taken; the names in full would take 400
    for explanation in found:
        assert "leaky_app" in explanation.holder.root
        assert len(explanation.holder.text) < 10_000
        assert all(len(step.edge) + len(step.type) < 5_000 for step in explanation.holder.path)
    vars(app).pop(LONG)


@pytest.mark.torch
def test_an_untracked_dict_is_read_once_whoever_holds_it(app: Any) -> None:
    numpy = pytest.importorskip("numpy")
    counts = []
    for count in (FEW, MANY):
        entries = {f"k{index}": False for index in range(count)}
        app.HELD = [[entries] for _ in range(count)]
        orphans = [numpy.ones(3)]
        with Calls() as calls:
            assert array_bases(orphans, (), Budget(10**9)) == []
        counts.append(calls.count)
    assert counts[1] < 4.8 * counts[0]


@pytest.mark.torch
def test_arrays_in_an_untracked_dict_that_many_hold_are_linked(app: Any) -> None:
    numpy = pytest.importorskip("numpy")
    base = numpy.ones(3)
    inner = (base[1:],)
    app.HELD = [{"x": inner}, {"y": inner}, {"z": base[:2]}]
    links = array_bases([base], (), Budget(10**9))
    pairs = {(type(link.parent).__name__, type(link.child).__name__) for link in links}
    assert ("ndarray", "ndarray") in pairs


def test_large_objects_in_one_dict_cost_in_step_with_their_number(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_objects, "MIN_BYTES", 1_000)
    counts = []
    for count in (FEW, MANY):
        large = LargeObjects()
        large.begin()
        app.HELD = {index: bytes(2_000) for index in range(count)}
        with Calls() as calls:
            found = large.end()
        counts.append(calls.count)
        (part,) = [part for part in found if part.text == "bytes" and "leaky_app.HELD" in str(part.holder)]
        assert part.holder is not None
        assert part.holder.text.startswith("leaky_app.HELD[")
        app.HELD = None
    assert counts[1] < 4.8 * counts[0]


def test_many_types_are_sized_in_step_with_their_number() -> None:
    counts = []
    for count in (250, 1_000):
        values: list[object] = [type("Kind", (), {})() for _ in range(count)]
        values = [*([1] * 50 * count), *values]
        with Calls() as calls:
            assert len(Sizes().of(values)) == 51 * count
        counts.append(calls.count)
    assert counts[1] < 4.8 * counts[0]
