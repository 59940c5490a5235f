"""What one search has met is not searched for again by those that follow it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain import reference_graph, search
from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.explain.reference_graph import KnownReferrers
from pytest_gpuleak.heap.referrers import referrers

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Sequence

pytestmark = pytest.mark.newest


class Thing:
    """Stands for a tensor."""


class Passes:
    """Counts the passes over the heap."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(search, "referrers", self)

    def __call__(self, children: Sequence[object], budget: Any) -> list[object]:
        self.count += 1
        return referrers(children, budget)


def found_for(app: Any) -> list[str]:
    (found,) = explain([*app.HISTORY])
    return [found.holder.text, *(other.text for other in found.others)]


@pytest.fixture
def held_three_times(app: Any) -> Any:
    thing = Thing()
    app.HISTORY.append(thing)
    app.CACHE["x"] = [[thing]]
    app.OTHER = [{"deep": [[thing]]}]
    return app


ALL = ["leaky_app.HISTORY[0]", "leaky_app.CACHE['x'][0][0]", "leaky_app.OTHER[0]['deep'][0][0]"]


def test_further_holders_cost_a_pass_for_what_is_new_alone(
    held_three_times: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes(monkeypatch)
    assert found_for(held_three_times) == ALL
    with_memory = passes.count
    # Three searches, which go up to the farthest root's level each.
    monkeypatch.setattr(KnownReferrers, "referrers", lambda *_: ([], set()))
    passes.count = 0
    assert found_for(held_three_times) == ALL
    assert with_memory * 2 < passes.count


def test_many_references_are_not_remembered(held_three_times: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_graph, "MAX_KNOWN", 2)
    assert found_for(held_three_times) == ALL


def test_an_object_with_a_referrer_that_was_left_out_is_searched_for_again() -> None:
    known = KnownReferrers()
    known.add_objects({1: "child", 2: "container"})
    known.note(1, 2)
    known.miss({1})
    known.complete({1})
    assert known.referrers([1]) == ([], set())


def test_what_is_known_comes_once_and_in_order() -> None:
    child, other, namespace = Thing(), Thing(), {"__name__": "app"}
    first, second = [child, other], [other]
    known = KnownReferrers()
    known.add_objects({id(first): first})
    known.add_objects({id(second): second})
    for value, container in ((child, first), (other, first), (other, second)):
        known.note(id(value), id(container))
    known.note_namespace(id(child), namespace)
    known.complete({id(child), id(other)})
    known.note(id(child), id(second))  # all were known already
    assert known.referrers([id(child), id(other), 5]) == ([first, namespace, second], {id(child), id(other)})


def test_what_a_container_has_lost_is_searched_for_again() -> None:
    child, other = Thing(), Thing()
    container = [child, other]
    known = KnownReferrers()
    known.add_objects({id(container): container})
    for value in (child, other):
        known.note(id(value), id(container))
    known.complete({id(child), id(other)})
    container.remove(child)
    assert known.referrers([id(child), id(other)]) == ([container], {id(other)})
    assert known.referrers([id(child)]) == ([], set())


MODELS = """
import functools

class Weight:
    pass

class Model:
    def __init__(self):
        self.weight = Weight()

    @functools.lru_cache
    def run(self, number):
        return number

def fill():
    model = Model()
    model.run(1), model.run(2)
"""


def test_an_instance_whose_dict_is_made_meanwhile(make_module: Callable[[str, str], types.ModuleType]) -> None:
    module: Any = make_module("cached_app", MODELS)
    module.fill()
    weights = [one for one in gc.get_objects() if type(one) is module.Weight]
    (found,) = explain(weights)  # writing the path through the first entry reads the instance's `__dict__`
    assert found.holder.text == "cached_app.Model.run (cache key)[0].weight"
    assert [other.text for other in found.others] == 2 * [found.holder.text]
