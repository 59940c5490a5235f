"""Heaps that defeat a naive search: very deep, very wide, very long. What many containers cost: test_surroundings_scale.py."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.explain.search import WRITING_STEPS
from pytest_gpuleak.heap.budget import Budget
from tests.support.calls import count_calls

if TYPE_CHECKING:
    from pytest_gpuleak.explain.search import Explanation

pytestmark = [pytest.mark.interpreter, pytest.mark.slow, pytest.mark.usefixtures("small_heap")]


class Thing:
    """Stands for a tensor."""


def linked(depth: int) -> tuple[list[Any], Thing]:
    target = Thing()
    chain: list[Any] = [target]
    for _ in range(depth):
        chain = [chain]
    return chain, target


def unlink(chain: Any) -> None:
    """Take a deep list apart from its outer end: freeing it at once is the interpreter's own recursion."""
    while type(chain) is list and chain:
        chain = chain.pop()


def test_a_thousand_levels_are_found(app: Any) -> None:
    app.HELD, target = linked(300)
    box = [target]
    holder = explain(box, ignore={id(sys._getframe())})[0].holder
    assert holder.text == "leaky_app.HELD" + "[0]" * 4 + " … 293 more … " + "[0]" * 4


def test_a_hundred_thousand_levels_stop_at_the_budget(app: Any) -> None:
    app.HELD, target = linked(100_000)
    budget = Budget(2_000_000)
    holder = explain([target], ignore={id(sys._getframe())}, budget=budget)[0].holder
    unlink(app.HELD)
    assert budget.left > -WRITING_STEPS
    assert holder.kind in ("unknown", "module")


def test_no_budget_at_all(app: Any) -> None:
    app.HISTORY.append(Thing())
    holder = explain(app.HISTORY, budget=Budget(0))[0].holder
    assert holder.kind == "unknown"
    assert "limit of objects" in holder.root


@pytest.mark.parametrize("count", [1, 400])
def test_a_long_list_costs_in_step_with_its_length(app: Any, count: int) -> None:
    targets = [Thing() for _ in range(count)]
    calls = []
    for size in (10_000, 40_000):
        app.HELD = [*range(size), *targets]
        found: list[Explanation] = []
        calls.append(count_calls(lambda found=found: found.extend(explain(targets))))  # type: ignore[misc]
        assert found[-1].holder.text == f"leaky_app.HELD[{size + count - 1}]"
    assert calls[1] < 4.8 * calls[0]


def test_many_references_to_one_object_cost_in_step_with_their_number(app: Any) -> None:
    target = Thing()
    calls = []
    for size in (10_000, 40_000):
        app.HELD = [target] * size
        found: list[Explanation] = []
        calls.append(count_calls(lambda found=found: found.extend(explain([target]))))  # type: ignore[misc]
        assert found[0].holder.text == "leaky_app.HELD[0]"
    assert calls[1] < 4.8 * calls[0]


def test_many_containers_refer_to_one_object(app: Any) -> None:
    target = Thing()
    app.HELD = [[target] for _ in range(10_000)]
    found = explain([target])[0]
    assert found.holder.root == "leaky_app.HELD"
    assert found.pattern == "leaky_app.HELD[*][*]"
