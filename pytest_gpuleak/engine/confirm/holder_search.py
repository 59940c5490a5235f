"""Search the heap for the holders of arrays that suspects left: of one suspect at once, or of many together."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.arrays import array_types, framework_of, select_arrays
from pytest_gpuleak.adapters.bulk import storages_of
from pytest_gpuleak.adapters.storages import is_storage
from pytest_gpuleak.heap.collector import get_objects
from pytest_gpuleak.heap.referrers import Deadline

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from pytest_gpuleak.adapters.frameworks import Frameworks
    from pytest_gpuleak.adapters.protocol import ArrayFramework
    from pytest_gpuleak.engine.confirm.left_arrays import LeftArrays
    from pytest_gpuleak.explain.explanation import Explanation
    from pytest_gpuleak.explain.known_culprits import Culprits
    from pytest_gpuleak.model.evidence import Root
    from pytest_gpuleak.model.findings import Autograd

GRAPHS_BUDGET_S: Final = 1.0
"""Seconds for counting what one test's autograd graphs retain; graphs beyond that are counted in part."""


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
    budget_s: float,
    groups: Mapping[int, int] = MappingProxyType({}),
) -> list[Explanation]:
    """Return who holds each of the `targets`, by a search of the visible whole heap, and remember the culprits."""
    from pytest_gpuleak.explain.crowds import explain_crowd

    found = explain_crowd(
        targets,
        ignore={id(targets)},
        remember=None if culprits is None else culprits.remember,
        budget_s=budget_s,
        frameworks=natives.reference_finders(),
        groups=groups,
    )
    if culprits is not None:
        for explanation in {id(why): why for why in found}.values():
            culprits.remember_ring(explanation)
    return found


def count_graphs(
    members: Mapping[Root, Sequence[object]], natives: Frameworks, deadline: Deadline | None
) -> dict[Root, Autograd]:
    """Return how much memory the autograd graphs behind the arrays of each root retain."""
    deadline = Deadline(GRAPHS_BUDGET_S) if deadline is None else deadline
    found: dict[Root, Autograd] = {}
    for root, arrays in members.items():
        if deadline.passed():
            break  # each count waits for threads in a backward pass, so many roots would take forever
        retained = natives.graph_size(arrays, deadline.left())
        if retained is not None:
            found[root] = retained
    return found
