"""Search the heap for the holders of arrays that suspects left: of one suspect at once, or of many together."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.arrays import array_types, framework_of, select_arrays
from pytest_gpuleak.adapters.bulk import storages_of
from pytest_gpuleak.adapters.storages import is_storage
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.collector import get_objects

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.adapters.protocol import ArrayFramework
    from pytest_gpuleak.engine.confirm.left_arrays import LeftArrays
    from pytest_gpuleak.explain.explanation import Explanation
    from pytest_gpuleak.explain.known_culprits import Culprits
    from pytest_gpuleak.model.evidence import Root
    from pytest_gpuleak.model.findings import Autograd

GRAPHS_STEPS: Final = 10_000_000
"""Steps (`heap.budget`) of counting what one test's autograd graphs retain: 100,000 nodes. Larger ones are cut."""


def find_left(
    left: LeftArrays, young: Container[int], frameworks: Sequence[ArrayFramework], natives: Frameworks
) -> tuple[list[object], set[int]]:
    """Return the visible arrays that were left, and the storages that other arrays use too.

    `young` are the ids of the arrays that were made since the last run began.
    """
    arrays = select_arrays(get_objects(), array_types(frameworks))
    targets = left.choose_left(arrays, young)
    ours, storages = set(map(id, targets)), array_types(natives.storages)
    # A storage object owns nothing but itself.
    others = [array for array in arrays if id(array) not in ours and not is_storage(array, storages)]
    del arrays
    # Reading an autograd graph creates Python objects for its tensors: these are no other users.
    alone = {one for finder in natives.reference_finders() for one in finder.held_alone(others)}
    return targets, storages_of((one for one in others if id(one) not in alone), frameworks)


def count_users(arrays: Iterable[object], frameworks: Sequence[ArrayFramework]) -> dict[int, int | None]:
    """Return how many arrays share the storage of each array, by its id."""
    return {id(one): framework_of(one, frameworks).storage_users(one) for one in arrays}


def search_holders(
    targets: Sequence[object],
    culprits: Culprits | None,
    natives: Frameworks,
    budget: Budget,
    groups: Mapping[int, int] = MappingProxyType({}),
) -> list[Explanation]:
    """Return who holds each of the `targets`, by a search of the visible whole heap, and remember the culprits."""
    from pytest_gpuleak.explain.crowds import explain_crowd

    found = explain_crowd(
        targets,
        ignore={id(targets)},
        remember=None if culprits is None else culprits.remember,
        budget=budget,
        frameworks=natives.reference_finders(),
        groups=groups,
    )
    if culprits is not None:
        for explanation in {id(why): why for why in found}.values():
            culprits.remember_ring(explanation)
    return found


def count_graphs(
    members: Mapping[Root, Sequence[object]], natives: Frameworks, budget: Budget | None
) -> dict[Root, Autograd]:
    """Return how much memory the autograd graphs behind the arrays of each root retain."""
    budget = Budget(GRAPHS_STEPS) if budget is None else budget
    found: dict[Root, Autograd] = {}
    for root, arrays in members.items():
        retained = natives.graph_size(arrays, budget)
        if retained is not None:
            found[root] = retained
    return found
