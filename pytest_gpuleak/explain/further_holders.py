"""Further holders: what would still keep an array if the first holder let go of it.

A tensor that a list and a cache both hold is freed by neither edit alone. The search is run again with the reference cut
that the first answer would have the reader remove, and again, until nothing else is found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from pytest_gpuleak.explain.cuts import cuts_of
from pytest_gpuleak.explain.roots.roots import EDITABLE, Roots
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pytest_gpuleak.explain.cuts import Cut
    from pytest_gpuleak.explain.roots.roots import Root
    from pytest_gpuleak.explain.search import Search
    from pytest_gpuleak.model.findings import Holder

MAX_OTHERS: Final = 3
"""Further holders that are looked for."""

MAX_ASKED: Final = 8
"""Culprits for which they are looked for: one array for each."""


SearchWithout: TypeAlias = "Callable[[Sequence[object], Collection[Cut]], Search]"
"""Makes a search for some of the targets that does not count some references; not yet run."""


def find_others(
    search: Search, targets: Sequence[object], again: SearchWithout, cuts: set[Cut]
) -> dict[tuple[str, str], tuple[Holder, ...]]:
    """The further holders, by kind and root of the first one.

    Args:
        search: the search that has found the first holders.
        targets: what it was made for.
        again: makes the searches that follow.
        cuts: references that do not count to begin with; those that were cut are added.
    """
    first: dict[tuple[str, str], int] = {}
    found: dict[tuple[str, str], list[Holder]] = {}
    answers = search.answers()
    for identity, answer in answers.by_target.items():
        root, key = answer.root, (answer.holder.kind, answer.holder.root)
        if root.rank == EDITABLE and key not in first:
            chain = answers.chain(identity)
            first[key] = identity
            found[key] = _other_names(root, chain)
            cuts.update(cuts_of(root, chain))
            if len(first) == MAX_ASKED:
                break
    asked = dict(first)
    for _ in range(MAX_OTHERS):
        if not asked:
            break
        asked = _ask(again, [target for target in targets if id(target) in asked.values()], asked, cuts, found)
    return {key: tuple(holders[:MAX_OTHERS]) for key, holders in found.items() if holders}


def _ask(
    again: SearchWithout,
    some: Sequence[object],
    asked: dict[tuple[str, str], int],
    cuts: set[Cut],
    found: dict[tuple[str, str], list[Holder]],
) -> dict[tuple[str, str], int]:
    """Look for one more holder of each culprit's array; those for which there was one."""
    further = again(some, cuts)
    further.run()
    answers = further.answers()
    left: dict[tuple[str, str], int] = {}
    for key, identity in asked.items():
        answer = answers.by_target.get(identity)
        if answer is not None and answer.root.kind == "thread":
            found[key].append(answer.holder)
        if answer is not None and answer.root.rank == EDITABLE:
            root, chain = answer.root, answers.chain(identity)
            found[key] += [answer.holder, *_other_names(root, chain)]
            cuts.update(cuts_of(root, chain))
            left[key] = identity
    return left


def _other_names(root: Root, chain: Sequence[object]) -> list[Holder]:
    """The holders that the same module is by further names of the array itself: the cut took all of them at once."""
    namespace = safe_access.module_dict(safe_access.loaded_module(root.module or "")) if len(chain) == 1 else None
    if namespace is None or sum(value is chain[0] for value in list(dict.values(namespace))) < 2:
        return []
    from pytest_gpuleak.explain.paths import Writer

    writer = Writer({})
    names = Roots(set()).global_roots(namespace, {id(chain[0])})
    return [writer.holder(chain, other) for _, other in names if other.name != root.name and other.rank == EDITABLE]
