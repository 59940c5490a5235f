"""Find rings through C++ that keep a tensor beside the root that was found: emptying the root frees nothing.

A gradient made with ``create_graph=True`` closes one. The ring becomes the holder, and the root a further one.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.cuts import cuts_of
from pytest_gpuleak.explain.further_holders import MAX_OTHERS
from pytest_gpuleak.explain.paths import pattern_of
from pytest_gpuleak.explain.roots.root import EDITABLE

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytest_gpuleak.explain.cuts import Cut
    from pytest_gpuleak.explain.explanation import Explanation
    from pytest_gpuleak.explain.search import Search
    from pytest_gpuleak.heap.budget import Budget
    from pytest_gpuleak.model.findings import Holder

MAX_TARGETS: Final = 2_000
"""Arrays whose rings are searched; of more, the first ones."""


def behind_rings(
    search: Search,
    targets: Sequence[object],
    found: list[Explanation],
    cuts: Collection[Cut],
    budget: Budget,
) -> list[Explanation]:
    """Return `found`, with the ring as holder of each target that a ring keeps too; `cuts` led to further holders."""
    if budget.spent or not search.native.may_close_rings(targets):
        return found
    answers = search.answers()
    leaked = set(map(id, targets))
    removed = {cut for cut in cuts if cut[0] not in leaked}
    rooted: list[object] = []
    for target in targets:
        answer = answers.by_target.get(id(target))
        if answer is not None and answer.root.rank == EDITABLE:
            chain = answers.chain(id(target))
            if len(rooted) >= MAX_TARGETS or budget.worked(len(chain)):
                break
            rooted.append(target)
            # By which the root holds the first leaked array on the path: all below it is leaked.
            first = next(index for index, value in enumerate(chain) if id(value) in leaked)
            removed.update(cuts_of(answer.root, chain[: first + 1]))
    further = search.again(rooted, removed, budget, native=True)
    further.run()
    rings = further.rings()
    return [
        explanation if id(target) not in rings else _with_ring(explanation, rings[id(target)])
        for target, explanation in zip(targets, found, strict=True)
    ]


def _with_ring(explanation: Explanation, ring: Holder) -> Explanation:
    others = (explanation.holder, *explanation.others)[:MAX_OTHERS]
    return dataclasses.replace(explanation, holder=ring, pattern=pattern_of(ring.text), others=others)
