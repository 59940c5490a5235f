"""Repeated culprits, recognised before the heap is searched again.

The first test that leaks into a list costs a walk over the whole heap, level by level. For the next one the list is
known: it is enough to look at the objects born in the test, which the epoch tells apart, and at what the known roots
hold. An answer found that way counts only where every reference to what the test left is accounted for, so that no
other holder stays unseen; else the whole heap is searched as before.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import Counter, deque
from itertools import chain
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.registry import own_reference_finders
from pytest_gpuleak.explain.roots.roots import EDITABLE, RANKS
from pytest_gpuleak.explain.unaccounted import owner_counter
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.hidden_references import RING_ROOT
from pytest_gpuleak.heap.referrers import Deadline, PausedCollector, get_objects, get_referents, leads_astray

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pytest_gpuleak.adapters.protocol import ReferenceFinder
    from pytest_gpuleak.explain.cuts import Cut
    from pytest_gpuleak.explain.explanation import Explanation
    from pytest_gpuleak.explain.roots.roots import Root
    from pytest_gpuleak.explain.search import Search

MAX_KNOWN: Final = 64
"""Roots that are remembered; of more, the ones met longest ago are forgotten."""

MAX_WALKED: Final = 20_000
"""References that are followed downwards from the known roots, nearest first."""

BUDGET_S: Final = 0.25
"""Seconds after which the whole heap is searched instead."""

_OWN_REFERENCES: Final = 3
"""References to an object of the graph that come from counting them: the graph's, a variable's and an argument's."""

_OWNED_BY_NATIVE_CODE: Final = 1
"""References that a framework may hold to the Python object of an array or of an autograd node while C++ uses it."""


@dataclasses.dataclass
class _Known:
    """A root met before. It refers to nothing of the user's.

    Attributes:
        root: the root, as plain data.
        depth: references between the root's own object and the arrays, at the most so far.
        reference: a weak reference to the root's own object, where its name does not lead to it.
    """

    root: Root
    depth: int
    reference: weakref.ref[Any] | None

    def holders(self) -> Iterator[tuple[Any, Any]]:
        """The root's own object, and who refers to it by the root's name where somebody does (a module's dict)."""
        if self.reference is not None:
            yield None, self.reference()
        elif self.root.kind == "module":
            namespace = safe_access.module_dict(safe_access.loaded_module(self.root.module or ""))
            if namespace is not None and self.root.name in namespace:
                yield namespace, namespace[self.root.name]
        else:
            yield None, safe_access.resolve(self.root.module, self.root.name)


class Culprits:
    """What held leaked arrays so far in this session: names, depths and weak references, no object of the user's."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._rings = False

    def remember(self, root: Root, value: object, length: int) -> None:
        """Note a root that a search of the whole heap has found.

        Args:
            root: the root.
            value: the root's own object.
            length: how many objects the longest way from there to an array has.
        """
        if root.rank != EDITABLE:
            return
        known = self._known.pop(root.text, None)
        if known is None:
            reference = None
            if root.kind not in ("module", "class", "cache"):
                try:
                    reference = weakref.ref(value)
                except TypeError:
                    return
            known = _Known(root, 0, reference)
        known.depth = max(known.depth, length)
        self._known[root.text] = known  # at the end: met last
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def remember_ring(self, explanation: Explanation) -> None:
        """Note that a ring through native code was met: from then on, one is looked for among young objects alone."""
        self._rings = self._rings or explanation.holder.root == RING_ROOT

    def recognise(
        self, targets: Sequence[object], ignore: Collection[int], frameworks: Sequence[ReferenceFinder] | None = None
    ) -> list[Explanation] | None:
        """Who holds the targets, if known culprits alone do; None where the whole heap must be searched.

        To be called while the collector shows young objects alone, the targets among them.

        Args:
            targets: the arrays.
            ignore: ids of the caller's containers that refer to them.
            frameworks: tell what their native code holds; None: the plugin's own.
        """
        if not (self._known or self._rings):
            return None
        from pytest_gpuleak.explain.further_holders import find_others
        from pytest_gpuleak.explain.rings import behind_rings
        from pytest_gpuleak.explain.search import OTHERS_BUDGET_S, Search

        finders = own_reference_finders() if frameworks is None else frameworks
        with PausedCollector():
            young = set(map(id, get_objects()))
            older = self._older(young)
            search = Search(targets, ignore, Deadline(BUDGET_S), older, frameworks=finders)
            search.run()
            if search.found((EDITABLE,)) < len(set(map(id, targets))):
                return self._recognise_rings(search)
            if not _accounted_for(search, targets, older, young, finders):
                return None

            def again(some: Sequence[object], cuts: Collection[Cut]) -> Search:
                return search.again(some, cuts, OTHERS_BUDGET_S)

            cuts: set[Cut] = set()
            return behind_rings(
                search, targets, search.explanations(others=find_others(search, targets, again, cuts)), cuts
            )

    def _recognise_rings(self, search: Search) -> list[Explanation] | None:
        """The explanations, where each is a ring of young objects that nothing else refers to."""
        if not self._rings or search.unexplained or search.found(RANKS):
            return None
        explanations = search.explanations()
        return explanations if all(found.holder.root == RING_ROOT for found in explanations) else None

    def _older(self, young: Collection[int]) -> dict[int, list[Any]]:
        """By the id of what is referred to: the objects below the known roots that refer to it, once a reference.

        Args:
            young: ids of the objects that the collector shows; what is below those is found without this.
        """
        found: dict[int, list[Any]] = {}
        pending: deque[tuple[Any, int]] = deque()
        for known in self._known.values():
            for namespace, value in known.holders():
                if namespace is not None:
                    found.setdefault(id(value), []).append(namespace)
                if value is not None:
                    pending.append((value, known.depth))
        walked, met = 0, set()
        while pending and walked < MAX_WALKED:
            parent, depth = pending.popleft()
            if id(parent) in met:
                continue
            met.add(id(parent))
            for child in get_referents(parent):
                walked += 1
                if walked > MAX_WALKED:
                    break  # one list may hold millions
                found.setdefault(id(child), []).append(parent)
                if depth > 1 and id(child) not in young and not leads_astray(child):
                    pending.append((child, depth - 1))
        return found


def _accounted_for(
    search: Search,
    targets: Sequence[object],
    older: dict[int, list[Any]],
    young: Collection[int],
    frameworks: Sequence[ReferenceFinder],
) -> bool:
    """Whether every reference to the young objects of the graph comes from the graph, or from a known root.

    A module's dict explains the references of its known names alone. A container may be young and yet below a known
    root: the root's name was bound to it in the test, or it was empty before (an empty dict is not tracked).
    """
    objects = search.objects
    ours = Counter(map(id, chain(targets, chain.from_iterable(older.values()))))
    arrays = set(map(id, targets))
    natives = search.linked.union(arrays)
    owned = _owned_by_native_code(frameworks)
    above = {id(parent) for identity in objects for parent in older.get(identity, ())}
    explained: Counter[int] = Counter()
    for identity, value in objects.items():
        explained[identity] += len(older.get(identity, ()))
        if identity not in above:
            explained.update(filter(objects.__contains__, map(id, get_referents(value))))
    for identity in list(objects):
        if identity in above and identity not in young:
            continue  # it is old: who else refers to it was found out when it became known
        value = objects[identity]
        references = getrefcount(value) - _OWN_REFERENCES - ours[identity] - explained[identity]
        if references > (_OWNED_BY_NATIVE_CODE if identity in natives and owned(value, identity in arrays) else 0):
            return False
    return True


def _owned_by_native_code(frameworks: Sequence[ReferenceFinder]) -> Callable[[object, bool], bool]:
    """A function that tells whether native code may own an object: is given the object, and whether it is an array.

    An array that no framework counts the owners of has none beside its Python object.
    """
    count = owner_counter(frameworks)

    def owned(value: object, is_array: bool) -> bool:
        owners = count(value)
        return not is_array if owners is None else owners > 0

    return owned
