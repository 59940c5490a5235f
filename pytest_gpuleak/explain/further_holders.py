"""Find what would still keep an array if the first holder let go, by searches without the references removed before."""

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

MAX_ASKED: Final = 8
"""Culprits for which further holders are searched, with one array for each."""


SearchWithout: TypeAlias = "Callable[[Sequence[object], Collection[Cut]], Search]"
"""Creates a search for some of the targets that ignores some references."""


def find_further_holders(
    search: Search, targets: Sequence[object], again: SearchWithout, cuts: set[Cut]
) -> dict[tuple[str, str], tuple[Holder, ...]]:
    """Return further holders by kind and root of the first. Removed references are added to `cuts`."""
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
    """Return other globals of the same module that are the array itself; one cut removed them all."""
    namespace = safe_access.module_dict(safe_access.loaded_module(root.module or "")) if len(chain) == 1 else None
    if namespace is None or sum(value is chain[0] for value in list(dict.values(namespace))) < 2:
        return []
    from pytest_gpuleak.explain.paths import Writer

    writer = Writer({})
    names = Roots(set()).global_roots(namespace, {id(chain[0])})
    return [writer.holder(chain, other) for _, other in names if other.name != root.name and other.rank == EDITABLE]
