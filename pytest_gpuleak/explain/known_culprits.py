"""Recognise repeated culprits without searching the whole heap.

The objects born in the test, which the epoch tells apart, and the content of the known roots are searched. The answer
counts only if every reference to what the test left is accounted for, so that no other holder is missed.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import Counter, deque
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.registry import own_reference_finders
from pytest_gpuleak.explain.roots.root import LASTING, RANKS
from pytest_gpuleak.explain.unaccounted import owner_counter
from pytest_gpuleak.explain.user_globals import UserGlobals
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.hidden_references import RING_ROOT
from pytest_gpuleak.heap.reference_counts import LOOKUP_REFERENCES, getrefcount
from pytest_gpuleak.heap.referrers import PausedCollector, get_objects, get_referents, reaches_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pytest_gpuleak.adapters.protocol import ReferenceFinder
    from pytest_gpuleak.explain.cuts import Cut
    from pytest_gpuleak.explain.explanation import Explanation
    from pytest_gpuleak.explain.roots.roots import Root
    from pytest_gpuleak.explain.search import Search

MAX_KNOWN: Final = 64
"""Number of roots that are remembered. Of more, those met longest ago are forgotten."""

MAX_WALKED: Final = 20_000
"""References that are followed downwards from the known roots, nearest first."""

STEPS: Final = 5_000_000
"""Steps (`heap.budget`) after which the whole heap is searched instead."""

_OWNED_BY_NATIVE_CODE: Final = 1
"""References of a framework to the Python object of an array or autograd node: torch keeps one while C++ uses it."""


@dataclasses.dataclass
class _Known:
    """A root met before. It refers to no user object.

    Attributes:
        depth: longest known distance (in references) from the root's object to an array.
        reference: a weak reference to the root's object, where its name does not lead to it.
    """

    root: Root
    depth: int
    reference: weakref.ref[Any] | None

    def holders(self) -> Iterator[tuple[Any, Any]]:
        """Return the root's object and, where there is one, the container of its name (a module's dict)."""
        if self.reference is not None:
            yield None, self.reference()
        elif self.root.kind == "module":
            namespace = safe_access.module_dict(safe_access.loaded_module(self.root.module or ""))
            if namespace is not None and self.root.name in namespace:
                yield namespace, namespace[self.root.name]
        else:
            yield None, safe_access.resolve(self.root.module, self.root.name)


class Culprits:
    """Roots of leaked arrays so far in this session: names, depths and weak references, no user objects.

    `is_user_file` tells which modules' globals are looked at although no leak was met there so far; None: none are.
    """

    def __init__(self, is_user_file: Callable[[str], bool] | None = None) -> None:
        self._known: dict[str, _Known] = {}
        self._rings = False
        self._globals = None if is_user_file is None else UserGlobals(is_user_file)

    @property
    def knows_any(self) -> bool:
        """Tell whether a culprit was met so far."""
        return bool(self._known) or self._rings

    def remember(self, root: Root, value: object, length: int) -> None:
        """Remember a root found by a search of the whole heap; its longest path to an array has `length` objects."""
        if root.rank not in LASTING:
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
        self._known[root.text] = known  # moved to the end, as met last
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def remember_ring(self, explanation: Explanation) -> None:
        """Remember that a ring through C++ was met. From then on rings are searched among young objects."""
        self._rings = self._rings or explanation.holder.root == RING_ROOT

    def recognise(
        self,
        targets: list[object],
        ignore: Collection[int],
        frameworks: Sequence[ReferenceFinder] | None = None,
        older: Collection[int] = (),
        reached: set[int] | None = None,
    ) -> list[Explanation] | None:
        """Explain the targets if known culprits alone hold them; None where the whole heap must be searched.

        Call it while the collector shows young objects alone.

        Args:
            targets: young objects.
            ignore: ids of the caller's containers.
            frameworks: tell what their native code holds; None: the plugin's own.
            older: ids of living objects that earlier runs left: added to the targets, if they are all found.
            reached: gets the ids of the targets if lasting roots lead to all, so that none is garbage, whoever else holds them.
        """
        if not (self._known or self._rings or self._globals):
            return None
        from pytest_gpuleak.explain.further_holders import find_further_holders
        from pytest_gpuleak.explain.rings import behind_rings
        from pytest_gpuleak.explain.search import OTHERS_STEPS, Question, Search

        finders = own_reference_finders() if frameworks is None else frameworks
        with PausedCollector():
            visible = get_objects()
            young = set(map(id, visible))
            # After a re-run in the same epoch, what earlier runs left is young too.
            left_before = [value for value in visible if id(value) in older] if older else []
            visible.clear()
            targets += left_before
            older = set(older).difference(map(id, left_before))
            left_before.clear()
            above, named, searched = self._older(young)
            remember = None
            if self._globals is not None and not above.keys() >= {*map(id, targets), *older}:
                self._globals.add_referrers(above, named, searched, young)
                remember = self.remember  # accounted for as by a search of the whole heap
            if not _add_older(targets, older, above):
                return None
            search = Search(Question(targets, Budget(STEPS), ignore, above, frameworks=finders))
            search.run()
            if search.found(LASTING) < len(set(map(id, targets))):
                return self._recognise_rings(search)
            if reached is not None:
                reached.update(map(id, targets))
            if not _accounted_for(search, targets, above, young, searched, finders):
                return None

            def again(some: Sequence[object], cuts: Collection[Cut]) -> Search:
                return search.again(some, cuts, Budget(OTHERS_STEPS))

            cuts: set[Cut] = set()
            others = find_further_holders(search, targets, again, cuts)
            return behind_rings(search, targets, search.explanations(remember, others), cuts, Budget(OTHERS_STEPS))

    def _recognise_rings(self, search: Search) -> list[Explanation] | None:
        """Return explanations where each is a ring of young objects without other referrers."""
        if not self._rings or search.unexplained or search.found(RANKS):
            return None
        explanations = search.explanations()
        return explanations if all(found.holder.root == RING_ROOT for found in explanations) else None

    def _older(self, young: Collection[int]) -> tuple[dict[int, list[Any]], Counter[tuple[int, int]], set[int]]:
        """Return, by referent's id, the referrers below the known roots that are not `young`, once a reference.

        Return too how many names of a namespace for a value are among them, by the ids of both, and the ids of the others.
        """
        found: dict[int, list[Any]] = {}
        named: Counter[tuple[int, int]] = Counter()
        pending: deque[tuple[Any, int]] = deque()
        for known in self._known.values():
            for namespace, value in known.holders():
                if namespace is not None:
                    found.setdefault(id(value), []).append(namespace)
                    named[id(namespace), id(value)] += 1
                if value is not None:
                    pending.append((value, known.depth))
        walked = 0
        met: set[int] = set()
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
                if depth > 1 and id(child) not in young and not reaches_everything(child):
                    pending.append((child, depth - 1))
        return found, named, met


def _add_older(targets: list[object], wanted: Collection[int], above: dict[int, list[Any]]) -> bool:
    """Add the objects with these ids to the targets, and tell whether they were all met."""
    for identity in wanted:
        parents = above.get(identity)
        if not parents:
            return False
        values = get_referents(parents[0])
        targets.append(next(value for value in values if id(value) == identity))
    return True


def _accounted_for(
    search: Search,
    targets: Sequence[object],
    older: dict[int, list[Any]],
    young: Collection[int],
    searched: Collection[int],
    frameworks: Sequence[ReferenceFinder],
) -> bool:
    """Tell whether every reference to the objects of the graph comes from the graph or a known root.

    A module's dict accounts for its known names alone. A young container below a known root was bound in the test, or
    was empty before (empty dicts are not tracked). Not asked of the old containers below a known root (`searched`): their
    other referrers were searched when it became known. Nor of a root that is no global, such as a class.
    """
    objects = search.objects
    ours = Counter(map(id, chain(targets, *older.values(), *search.own_lists())))
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
        if identity in above and identity not in young and (identity in searched or identity in search.leaves):
            continue
        value = objects[identity]
        references = getrefcount(value) - LOOKUP_REFERENCES - ours[identity] - explained[identity]
        if references > (_OWNED_BY_NATIVE_CODE if identity in natives and owned(value, identity in arrays) else 0):
            return False
    return True


def _owned_by_native_code(frameworks: Sequence[ReferenceFinder]) -> Callable[[object, bool], bool]:
    """Return a function of an object, and whether it is an array, that tells whether native code may own it.

    An array whose owners no framework counts has no owner beside its Python object.
    """
    count = owner_counter(frameworks)

    def owned(value: object, is_array: bool) -> bool:
        owners = count(value)
        return not is_array if owners is None else owners > 0

    return owned
