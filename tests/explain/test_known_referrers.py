"""What one search has met is not searched for again by those that follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain import known_referrers, search
from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.explain.known_referrers import KnownReferrers
from pytest_gpuleak.heap.referrers import referrers

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.interpreter


class Thing:
    """Stands for a tensor."""


class Passes:
    """Counts the passes over the heap."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(search, "referrers", self)

    def __call__(self, children: Sequence[object], deadline: Any) -> list[object]:
        self.count += 1
        return referrers(children, deadline)


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
    monkeypatch.setattr(known_referrers, "MAX_KNOWN", 2)
    assert found_for(held_three_times) == ALL


def test_an_object_with_a_referrer_that_was_left_out_is_searched_for_again() -> None:
    known, values = KnownReferrers(), {1: "child", 2: "container"}
    known.add_objects(values)
    known.note(1, 2)
    known.miss({1})
    known.complete({1})
    assert known.referrers([1]) == ([], set())


def test_what_is_known_comes_once_and_in_order() -> None:
    known = KnownReferrers()
    known.add_objects({1: "child", 2: "other", 3: "first"})
    known.add_objects({4: "second"})
    for child, container in ((1, 3), (2, 3), (2, 4)):
        known.note(child, container)
    namespace = {"__name__": "app"}
    known.note_namespace(1, namespace)
    known.complete({1, 2})
    known.note(1, 4)  # all were known already
    assert known.referrers([1, 2, 5]) == (["first", namespace, "second"], {1, 2})
