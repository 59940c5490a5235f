"""Explain who keeps objects alive, and who else would."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_gpuleak.explain.further_holders import find_further_holders
from pytest_gpuleak.explain.rings import behind_rings
from pytest_gpuleak.explain.search import OTHERS_STEPS, SEARCH_STEPS, Question, Search
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.collector import PausedCollector

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_gpuleak.adapters.reference_protocol import ReferenceFinder
    from pytest_gpuleak.explain.cuts import Cut
    from pytest_gpuleak.explain.explanation import Explanation
    from pytest_gpuleak.explain.search import Remember


def explain(  # noqa: PLR0913 - what may be told of a search, each by its name
    targets: Sequence[object],
    *,
    ignore: Collection[int] = (),
    budget: Budget | None = None,
    remember: Remember | None = None,
    known: Collection[Cut] = (),
    frameworks: Sequence[ReferenceFinder] | None = None,
    groups: Mapping[int, int] = MappingProxyType({}),
) -> list[Explanation]:
    """Find out who holds each of `targets`: one explanation each, in their order.

    The whole heap must be visible to the collector: call `gc.unfreeze` before. Automatic collection is off during the
    search, and nothing that it read is kept.

    Args:
        targets: live objects; the sequence itself never counts as a holder.
        ignore: ids of the caller's containers and frames that refer to the targets and do not count either.
        budget: where the search stops, None: after `SEARCH_STEPS`. Naming the answers takes up to `WRITING_STEPS` more.
        remember: called with each root and its object. It must not keep them.
        known: references that do not count.
        frameworks: tell what their native code holds; None: the plugin's own.
        groups: by a target's id the group, such as a test's, of which one target gets further holders for each root.
    """
    with PausedCollector():
        budget = Budget(SEARCH_STEPS) if budget is None else budget
        search = Search(Question(targets, budget, ignore, cuts=known, frameworks=frameworks))
        search.run()
        cuts = set(known)
        others = find_further_holders(search, targets, cuts, groups)
        found = search.explanations(remember, others, groups)
        return behind_rings(search, targets, found, cuts, budget.part(OTHERS_STEPS))
