"""Very many targets: a sample is explained, and the others are found from above."""

from __future__ import annotations

import collections
import itertools
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain.explain import CROWD, SAMPLE, explain_crowd
from pytest_gpuleak.explain.rootless import TIMEOUT_ROOT
from pytest_gpuleak.heap.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.explain.search import Explanation

pytestmark = pytest.mark.newest

MANY = CROWD + 1_000


class Thing:
    """Stands for a tensor."""


class Node:
    """A link of a chain."""

    def __init__(self, value: Thing) -> None:
        self.value = value
        self.next: Node | None = None


def things(count: int) -> list[Thing]:
    return [Thing() for _ in range(count)]


def explained(targets: list[Thing], steps: int = 10**9) -> list[Explanation]:
    return explain_crowd(targets, ignore={id(targets)}, budget=Budget(steps))


def roots(found: Sequence[Explanation]) -> dict[str, int]:
    return dict(collections.Counter(explanation.holder.root for explanation in found))


def test_each_is_found_under_its_own_root(app: Any) -> None:
    targets = things(MANY)
    app.FIRST, app.SECOND = targets[: MANY // 2], dict(enumerate(targets[MANY // 2 :]))
    found = explained(targets)
    assert roots(found) == {"leaky_app.FIRST": MANY // 2, "leaky_app.SECOND": MANY - MANY // 2}
    assert [explanation.holder.root[-1] for explanation in found] == ["T"] * (MANY // 2) + ["D"] * (MANY - MANY // 2)


def test_a_few_among_very_many_are_not_lost(app: Any) -> None:
    targets = things(MANY)
    few = set(range(1_000, 1_000 + SAMPLE // 2))
    app.FEW = [targets[index] for index in few]
    app.HELD = [target for index, target in enumerate(targets) if index not in few]
    found = explained(targets)
    assert {index for index, one in enumerate(found) if one.holder.root == "leaky_app.FEW"} == few
    assert roots(found)["leaky_app.HELD"] == MANY - len(few)


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("newest_first", [True, False])
def test_a_chain_is_found_from_its_head(app: Any, newest_first: bool) -> None:
    targets = things(MANY)
    nodes = [Node(target) for target in targets]
    ordered = nodes[::-1] if newest_first else nodes
    for node, following in itertools.pairwise(ordered):
        node.next = following
    app.HEAD = ordered[0]
    del nodes, ordered
    assert roots(explained(targets)) == {"leaky_app.HEAD": MANY}


def test_like_ones_share_an_explanation_and_a_pattern(app: Any) -> None:
    targets = things(MANY)
    app.HELD = [[target] for target in targets]
    found = explained(targets)
    assert {explanation.pattern for explanation in found} == {"leaky_app.HELD[*][*]"}
    assert found[0].holder.text == "leaky_app.HELD[0][0]"
    assert len({id(explanation) for explanation in found}) <= 2 * SAMPLE


def test_a_root_that_leads_to_most_of_the_process_is_left_there(app: Any) -> None:
    targets = things(MANY)
    app.HELD = [app, app.Attention, *targets[1:]]
    app.OTHER = targets[:1]
    found = explained(targets)
    # Through the module, which the list refers to, the other could be reached too.
    assert roots(found) == {"leaky_app.HELD": MANY - 1, "leaky_app.OTHER": 1}


def test_without_a_budget_it_is_said_that_not_all_is_explained(app: Any) -> None:
    targets = things(MANY)
    app.HELD = list(targets)
    found = explained(targets, steps=0)
    assert roots(found) == {TIMEOUT_ROOT: MANY}
    assert "not explained in full" in found[0].holder.text


def test_roots_are_told_as_those_of_a_few_are(app: Any) -> None:
    targets = things(MANY)
    app.HELD = list(targets)
    told: list[str] = []
    explain_crowd(
        targets, ignore={id(targets)}, budget=Budget(10**9), remember=lambda root, value: told.append(root.text)
    )
    assert set(told) == {"leaky_app.HELD"}


def test_what_is_held_by_nobody_is_not_kept(app: Any) -> None:
    targets = things(MANY)
    app.HELD = list(targets)
    explained(targets)
    app.HELD.clear()
    reference = weakref.ref(targets[0])
    targets.clear()
    assert reference() is None
