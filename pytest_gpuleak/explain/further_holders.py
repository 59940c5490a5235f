"""Find what would still keep an array if the first holder let go, by searches without the references removed before.

Rings through C++ may keep a tensor beside the root that was found: a gradient made with ``create_graph=True`` closes one.
Emptying the root frees nothing then, so the ring becomes the holder, and the root a further one.
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections import Counter, OrderedDict, defaultdict, deque
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.registry import own_layouts
from pytest_gpuleak.explain.paths import pattern_of
from pytest_gpuleak.explain.roots.roots import EDITABLE, Roots
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_gpuleak.explain.reference_graph import Cut
    from pytest_gpuleak.explain.roots.roots import Root
    from pytest_gpuleak.explain.search import Culprit, Explanation, Search
    from pytest_gpuleak.heap.budget import Budget
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


_SHRINKING: Final = (list, set, deque, OrderedDict, defaultdict, safe_access.LRU_WRAPPER)
_ENTRIES: Final = frozenset(map(id, _SHRINKING))
_LAYOUTS: Final = own_layouts()
"""Where modules keep what they are made of: a reader does not take a layer's weight out to free it."""


def cuts_of(root: Root, chain: Sequence[object]) -> tuple[Cut, ...]:
    """Return the references to remove: the first entry of a container that can shrink, else the last reference.

    The collector may show an attribute as a reference of the object, of its ``__dict__``, or both.
    """
    if len(chain) == 1:
        namespace = safe_access.module_dict(safe_access.loaded_module(root.module or ""))
        return ((id(namespace), id(chain[0])),)
    position = _chosen(chain)
    parent, child = chain[position], id(chain[position + 1])
    holders = [parent]
    if position > 0 and parent is safe_access.instance_dict(chain[position - 1]):
        holders.append(chain[position - 1])
    attributes = safe_access.instance_dict(parent)
    if attributes is not None:
        holders.append(attributes)
    return tuple([(id(holder), child) for holder in holders])


def _chosen(chain: Sequence[object]) -> int:
    structure = _structure(chain)
    for position, parent in enumerate(chain[:-1]):
        entries = id(type(parent)) in _ENTRIES
        if type(parent) is dict:
            entries = position == 0 or not _is_namespace(parent, chain[position - 1])
        if entries and id(parent) not in structure:
            return position
    for position in reversed(range(len(chain) - 1)):
        if structure.isdisjoint((id(chain[position]), id(chain[position + 1]))):
            return position
    return len(chain) - 2


def _structure(chain: Sequence[object]) -> set[int]:
    found: set[int] = set()
    for value in chain:
        for layout in _LAYOUTS:
            attributes = safe_access.instance_dict(value) if layout.keeps_parts(value) else None
            if attributes is not None:
                found.add(id(attributes))
                found.update(id(attributes[name]) for name in layout.names if name in attributes)
    return found


def _is_namespace(value: object, owner: object) -> bool:
    namespaces = safe_access.instance_dict(owner), safe_access.module_dict(owner)
    return safe_access.is_a(owner, type) or any(value is namespace for namespace in namespaces)


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
