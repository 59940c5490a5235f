"""Further holders: what would still keep an array if the first holder let go of it.

A tensor that a list and a cache both hold is freed by neither edit alone. The search is run again with the reference cut
that the first answer would have the reader remove, and again, until nothing else is found.
"""

from __future__ import annotations

import collections
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

from pytest_gpuleak.holders import raw
from pytest_gpuleak.holders.roots import EDITABLE, Roots

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pytest_gpuleak.findings import Holder
    from pytest_gpuleak.holders.roots import Root
    from pytest_gpuleak.holders.search import Search

MAX_OTHERS: Final = 3
"""Further holders that are looked for."""

MAX_ASKED: Final = 8
"""Culprits for which they are looked for: one array for each."""

Cut = tuple[int, int]
"""A reference that does not count: the ids of who refers and of what is referred to."""

_ENTRIES: Final = frozenset(
    {
        id(list),
        id(set),
        id(collections.deque),
        id(collections.OrderedDict),
        id(collections.defaultdict),
        id(raw.LRU_WRAPPER),
    }
)


SearchWithout: TypeAlias = "Callable[[Sequence[object], Collection[Cut]], Search]"
"""Makes a search for some of the targets that does not count some references; not yet run."""


def find_others(
    search: Search, targets: Sequence[object], again: SearchWithout, known: Collection[Cut] = ()
) -> dict[tuple[str, str], tuple[Holder, ...]]:
    """The further holders, by kind and root of the first one.

    Args:
        search: the search that has found the first holders.
        targets: what it was made for.
        again: makes the searches that follow.
        known: references that do not count to begin with.
    """
    first: dict[tuple[str, str], int] = {}
    found: dict[tuple[str, str], list[Holder]] = {}
    cuts: set[Cut] = set(known)
    for identity, (root, chain, holder) in search.answers().items():
        key = (holder.kind, holder.root)
        if root.rank == EDITABLE and key not in first and len(first) < MAX_ASKED:
            first[key] = identity
            found[key] = _other_names(root, chain)
            cuts.add(_cut(root, chain))
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
        answer = answers.get(identity)
        if answer is not None and answer[0].rank == EDITABLE:
            root, chain, holder = answer
            found[key] += [holder, *_other_names(root, chain)]
            cuts.add(_cut(root, chain))
            left[key] = identity
    return left


def _cut(root: Root, chain: Sequence[object]) -> Cut:
    """The reference that a reader would remove: the first entry of a container that can shrink, else the last one."""
    if len(chain) == 1:
        namespace = raw.module_dict(raw.loaded_module(root.module or ""))
        return (id(namespace), id(chain[0]))
    for position, (parent, child) in enumerate(pairwise(chain)):
        kind = type(parent)
        entries = id(kind) in _ENTRIES
        if kind is dict:
            entries = position == 0 or not _is_namespace(parent, chain[position - 1])
        if entries:
            return (id(parent), id(child))
    return (id(chain[-2]), id(chain[-1]))


def _other_names(root: Root, chain: Sequence[object]) -> list[Holder]:
    """The holders that the same module is by further names of the array itself: the cut took all of them at once."""
    namespace = raw.module_dict(raw.loaded_module(root.module or "")) if len(chain) == 1 else None
    if namespace is None or sum(value is chain[0] for value in list(dict.values(namespace))) < 2:
        return []
    from pytest_gpuleak.holders.paths import Writer

    writer = Writer({})
    names = Roots(set()).global_roots(namespace, {id(chain[0])})
    return [writer.holder(chain, other) for _, other in names if other.name != root.name and other.rank == EDITABLE]


def _is_namespace(value: object, owner: object) -> bool:
    """Whether a dict holds the attributes of an instance, a class or a module."""
    return raw.is_a(owner, type) or value is raw.instance_dict(owner) or value is raw.module_dict(owner)
