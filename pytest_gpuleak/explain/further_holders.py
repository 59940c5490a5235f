"""Find further holders: what would still keep an array if the first holder let go of it.

The search is repeated without the references that earlier answers would have the reader remove, until it finds nothing.
"""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from pytest_gpuleak.explain.cuts import cuts_of
from pytest_gpuleak.explain.roots.roots import EDITABLE, Roots
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pytest_gpuleak.explain.cuts import Cut
    from pytest_gpuleak.explain.roots.roots import Root
    from pytest_gpuleak.explain.search import Search
    from pytest_gpuleak.model.findings import Holder

MAX_OTHERS: Final = 3

MAX_ASKED: Final = 8
"""Culprits for which further holders are searched in each group, with one array for each."""

MAX_ASKED_IN_ALL: Final = 400

Culprit: TypeAlias = "tuple[str, str, int]"
"""Kind and root of the first holder, and the group of the array: see `explain`."""

SearchWithout: TypeAlias = "Callable[[Sequence[object], Collection[Cut]], Search]"
"""Creates a search for some of the targets that ignores some references."""


def find_further_holders(
    search: Search,
    targets: Sequence[object],
    again: SearchWithout,
    cuts: set[Cut],
    groups: Mapping[int, int] = MappingProxyType({}),
) -> dict[Culprit, tuple[Holder, ...]]:
    """Return the further holders.

    `again` creates the further searches. `cuts` are ignored; removed references are added to them. `groups` has the group of
    each target by its id; those without one are group 0.
    """
    first: dict[Culprit, int] = {}
    found: dict[Culprit, list[Holder]] = {}
    asked_of: Counter[int] = Counter()
    answers = search.answers()
    for identity, answer in answers.by_target.items():
        root, group = answer.root, groups.get(identity, 0)
        key = (answer.holder.kind, answer.holder.root, group)
        if root.rank == EDITABLE and key not in first and asked_of[group] < MAX_ASKED:
            chain = answers.chain(identity)
            first[key] = identity
            found[key] = _other_names(root, chain)
            cuts.update(cuts_of(root, chain))
            asked_of[group] += 1
            if len(first) == MAX_ASKED_IN_ALL:
                break
    asked = dict(first)
    for _ in range(MAX_OTHERS):
        if not asked:
            break
        wanted = set(asked.values())
        asked = _ask(again, [target for target in targets if id(target) in wanted], asked, cuts, found)
    return {key: tuple(holders[:MAX_OTHERS]) for key, holders in found.items() if holders}


def _ask(
    again: SearchWithout,
    some: Sequence[object],
    asked: dict[Culprit, int],
    cuts: set[Cut],
    found: dict[Culprit, list[Holder]],
) -> dict[Culprit, int]:
    further = again(some, cuts)
    further.run()
    answers = further.answers()
    left: dict[Culprit, int] = {}
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
    """Return other globals of the same module that are the array itself; one cut removed them all."""
    namespace = safe_access.module_dict(safe_access.loaded_module(root.module or "")) if len(chain) == 1 else None
    if namespace is None or sum(value is chain[0] for value in list(dict.values(namespace))) < 2:
        return []
    from pytest_gpuleak.explain.paths import Writer

    writer = Writer({})
    names = Roots(set()).global_roots(namespace, {id(chain[0])})
    return [writer.holder(chain, other) for _, other in names if other.name != root.name and other.rank == EDITABLE]
