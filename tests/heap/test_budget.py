"""The bound of searches: a count, the same on each machine."""

from __future__ import annotations

import pytest

from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.interpreter import getrefcount


def test_steps_are_counted_to_the_last() -> None:
    budget = Budget(10)
    assert [budget.worked(4), budget.worked(5), budget.worked(1), budget.worked(1)] == [False, False, True, True]
    assert (budget.left, budget.spent) == (-1, True)


def test_without_steps_it_is_spent_at_once() -> None:
    assert Budget(0).spent


def test_a_part_counts_in_the_whole_and_takes_no_more_than_is_left() -> None:
    whole = Budget(100)
    part = whole.part(60)
    inner = part.part(50)
    assert not inner.worked(40)
    assert (inner.left, part.left, whole.left) == (10, 20, 60)
    assert whole.part(1000).left == 60
    whole.worked(61)
    assert whole.part(5).spent
    assert not part.spent


@pytest.mark.interpreter
def test_items_are_given_while_there_are_steps_and_not_referred_to() -> None:
    budget, items = Budget(30), [object() for _ in range(5)]
    apart = getrefcount(items[0])
    counts = [getrefcount(item) - apart for item in budget.affordable(items, 10)]
    direct = [getrefcount(item) - apart for item in items]
    assert counts == direct[:2], "the loop's variable alone refers to an item"
    assert budget.spent
