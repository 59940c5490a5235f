"""Heaps that defeat a naive search: very deep, very wide, very long. Budgets are generous: machines differ."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.explain.search import WRITING_STEPS
from pytest_gpuleak.heap.budget import Budget

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


def test_a_million_references_in_one_list(app: Any) -> None:
    target = Thing()
    app.HELD = [target] * 1_000_000
    start = time.perf_counter()
    assert explain([target])[0].holder.text == "leaky_app.HELD[0]"
    assert time.perf_counter() - start < 30


def test_many_containers_refer_to_one_object(app: Any) -> None:
    target = Thing()
    app.HELD = [[target] for _ in range(300_000)]
    start = time.perf_counter()
    found = explain([target])[0]
    assert time.perf_counter() - start < 30  # bounded, on however slow a machine
    assert found.holder.root == "leaky_app.HELD"
    assert found.pattern == "leaky_app.HELD[*][*]"


def test_hundreds_of_targets_in_a_long_list(app: Any) -> None:
    targets = [Thing() for _ in range(400)]
    app.HELD = [*range(1_000_000), *targets]
    start = time.perf_counter()
    found = explain(targets)
    assert time.perf_counter() - start < 30  # bounded, on however slow a machine
    assert found[399].holder.text == "leaky_app.HELD[1000399]"
