"""Find what would still keep an array if the first holder let go, by searches without the references removed before."""

from __future__ import annotations

import contextvars
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.cuts import cuts_of
from pytest_gpuleak.explain.roots.roots import EDITABLE, Roots
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuleak.explain.cuts import Cut
    from pytest_gpuleak.explain.explanation import Culprit
    from pytest_gpuleak.explain.roots.roots import Root
    from pytest_gpuleak.explain.search import Search
    from pytest_gpuleak.model.findings import Holder

MAX_OTHERS: Final = 3

MAX_ASKED: Final = 8
"""Culprits for which further holders are searched in each group, with one array for each."""

MAX_ASKED_IN_ALL: Final = 400


def find_further_holders(
    search: Search,
    targets: Sequence[object],
    cuts: set[Cut],
    groups: Mapping[int, int] = MappingProxyType({}),
) -> dict[Culprit, tuple[Holder, ...]]:
    """Return the further holders. Removed references are added to `cuts`; `groups`: see `explain`."""
    first: dict[Culprit, int] = {}
    asked_of: Counter[int] = Counter()
    further = _Further(search, targets, cuts)
    answers = search.answers()
    for identity, answer in answers.by_target.items():
        group = groups.get(identity, 0)
        key = (answer.holder.kind, answer.holder.root, group)
        if answer.root.rank == EDITABLE and key not in first and asked_of[group] < MAX_ASKED:
            first[key] = identity
            asked_of[group] += 1
            further.cut(key, answer.root, answers.chain(identity))
            if len(first) == MAX_ASKED_IN_ALL:
                break
    asked = first
    for _ in range(MAX_OTHERS):
        if not asked:
            break
        asked = further.ask(asked)
    return {key: tuple(holders[:MAX_OTHERS]) for key, holders in further.found.items() if holders}


class _Further:
    """The searches for further holders of one array for each culprit, and what they have found."""

    def __init__(self, first: Search, targets: Sequence[object], cuts: set[Cut]) -> None:
        self.found: dict[Culprit, list[Holder]] = {}
        self._targets = targets
        self._first = first
        self._cuts = cuts
        self._given = frozenset(cuts)
        self._of_group: dict[int, set[Cut]] = {}
        self._contexts: dict[Culprit, set[int]] = {}

    def cut(self, key: Culprit, root: Root, chain: Sequence[object]) -> None:
        """Remove what a reader would, and note other names of the array."""
        self.found.setdefault(key, []).extend(_other_names(root, chain))
        self._contexts.setdefault(key, set()).update(id(value) for value in chain if type(value) is contextvars.Context)
        removed = cuts_of(root, chain)
        self._cuts.update(removed)
        self._of_group.setdefault(key[2], set()).update(removed)

    def ask(self, asked: Mapping[Culprit, int]) -> dict[Culprit, int]:
        """Search again for the arrays, by id, and return those with another holder that can be removed."""
        wanted = set(asked.values())
        search = self._first.again([target for target in self._targets if id(target) in wanted], self._cuts)
        search.run()
        left: dict[Culprit, int] = {}
        for key, identity in asked.items():
            used, answer = search, search.answers().by_target.get(identity)
            removable = answer is not None and answer.root.rank == EDITABLE
            if not removable and self._may_be_hidden(search, identity, key[2]):
                own = self._given | self._of_group[key[2]]
                used = self._first.again([target for target in self._targets if id(target) == identity], own)
                used.run()
                answer = used.answers().by_target.get(identity)
            if answer is None:
                continue
            # A context on the way from a holder is a thread's at worst: who removes it from there needs no thread.
            if answer.root.kind == "thread" and id(used.answers().chain(identity)[0]) not in self._contexts[key]:
                self.found[key].append(answer.holder)
            if answer.root.rank == EDITABLE:
                self.found[key].append(answer.holder)
                self.cut(key, answer.root, used.answers().chain(identity))
                left[key] = identity
        return left

    def _may_be_hidden(self, search: Search, identity: int, group: int) -> bool:
        """Tell whether a reference that another group's answer would remove leads to the array."""
        if len(self._of_group) == 1:
            return False
        foreign = {child for other, cuts in self._of_group.items() if other != group for _, child in cuts}
        return any(node in foreign for node in search.above(identity))


def _other_names(root: Root, chain: Sequence[object]) -> list[Holder]:
    """Return other globals of the same module that are the array itself; one cut removed them all."""
    namespace = safe_access.module_dict(safe_access.loaded_module(root.module or "")) if len(chain) == 1 else None
    if namespace is None or sum(value is chain[0] for value in list(dict.values(namespace))) < 2:
        return []
    from pytest_gpuleak.explain.paths import Writer

    writer = Writer({})
    names = Roots(set()).global_roots(namespace, {id(chain[0])})
    return [writer.holder(chain, other) for _, other in names if other.name != root.name and other.rank == EDITABLE]
