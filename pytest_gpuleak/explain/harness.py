"""Tell at a glance what the test's runner alone holds, without a search of the heap.

A frame of pytest-flaky's holds the instance of a `unittest.TestCase` until the test's report is made; pytest's item
keeps the instance of any other test class until the session ends.
"""

from __future__ import annotations

import sys
from collections import Counter
from gc import get_referents
from inspect import CO_OPTIMIZED
from itertools import chain
from types import CellType, MethodType
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuleak.adapters.registry import finders
from pytest_gpuleak.explain.reference_graph import Graph
from pytest_gpuleak.explain.unaccounted import owner_counter
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.collector import PausedCollector, get_objects, get_referrers
from pytest_gpuleak.heap.frames import belongs_to_plugin, local_variables
from pytest_gpuleak.heap.interpreter import LENDS_ARGUMENTS, LOOKUP_REFERENCES, getrefcount
from pytest_gpuleak.heap.safe_access import instance_dict

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from types import FrameType

    from pytest_gpuleak.adapters.reference_protocol import ReferenceFinder
    from pytest_gpuleak.model.evidence import Keeper

MAX_OBJECTS: Final = 20_000
"""Young objects above the arrays that are looked at. The search for holders decides on larger structures."""

MAX_OF_HEAP: Final = 300
"""The same where the collector shows the whole heap, which is looked through for each level of them."""

MAX_YOUNG: Final = 100_000
"""Young objects that are listed by what refers to them: a tenth of a second."""

FEW: Final = 32
"""Objects whose referrers the collector is asked for: it compares each reference of a young object with each of them."""

GRAPH_STEPS: Final = 3_000_000
"""Steps (`heap.budget`) of reading what native code holds: one walk over the young objects."""

_VALUES_LIE_IN_OBJECTS: Final = sys.version_info >= (3, 13)


class HeldAlone(NamedTuple):
    """Who alone holds arrays, and their ids: none where something else holds each."""

    by: Keeper
    arrays: frozenset[int]


def held_by_harness(
    arrays: Sequence[object],
    item: object,
    test_class: type | None,
    frameworks: Sequence[ReferenceFinder],
    too_much: set[int] | None = None,
) -> HeldAlone | None:
    """Tell which of `arrays` this thread's frames or pytest's item alone hold.

    None: what holds them is too much to be looked at.

    Every reference to these arrays, and to what they can be reached from, must come from a young object, the test's
    instance (of `test_class`), a local variable, or an attribute of the item. What else holds, and what nothing holds any
    more (a cycle), is not among them. The sequence does not count.

    With `too_much` the collector shows the whole heap, and only a few objects are looked at. It takes the ids of those that
    more objects hold, for further calls: each of many arrays on one holder would take the same walks over the heap.
    """
    with PausedCollector():
        attributes = instance_dict(item)
        if attributes is None:
            return None
        return _Above(arrays, attributes, test_class, too_much).held_alone(frameworks)


class _Above:
    """What the arrays can be reached from: young objects, and the test's instance."""

    def __init__(
        self,
        arrays: Sequence[object],
        item: Mapping[str, object],
        test_class: type | None,
        too_much: set[int] | None,
    ) -> None:
        self._arrays = frozenset(map(id, arrays))
        self._graph = Graph()
        self._item, self._class = item, test_class
        self._too_much = too_much
        self._complete = True
        objects = self._graph.objects
        objects.update({id(array): array for array in arrays})
        self._known = Counter(self._arrays)  # the caller's sequence
        frames = _Frames(test_class, item)
        self._climb(list(objects.values()), {id(arrays)}, frames)
        self._from_item, self._from_frames = self._count_known(frames, objects.keys())

    def _climb(self, level: list[object], own: set[int], frames: _Frames) -> None:
        """Add what refers to the objects of a level (emptied), and to what is added, but for what is our `own`."""
        objects = self._graph.objects
        own |= {id(self._item), id(objects), id(frames.instances)} | frames.on_stack
        most = MAX_OBJECTS if self._too_much is None else MAX_OF_HEAP
        referrers = _Referrers(own, frames.instances, FEW if self._too_much is None else most)
        shared = set[int]() if self._too_much is None else self._too_much
        met: dict[int, int] = {}  # what is met after an object that is alone in its level is above it
        while level and len(objects) <= most and shared.isdisjoint(map(id, level)):
            if len(level) == 1:
                met[id(level[0])] = len(objects)
            level = self._expand(level, own, referrers)
        referrers.clear()
        shared.update(self._graph.below({identity for identity, before in met.items() if len(objects) - before > most}))
        self._complete = self._complete and not level

    def _count_known(self, frames: _Frames, added: Collection[int]) -> tuple[set[int], set[int]]:
        """Count the references of the item and of frames to what was added; return what each of the two refers to."""
        from_item = Counter(map(id, self._item.values()))
        for references in (frames.references, from_item):
            for identity in added & references.keys():
                self._known[identity] += references[identity]
        return set(added & from_item.keys()), frames.held(added)

    def _add_hidden(self, elsewhere: Collection[int]) -> bool:
        """Add what holds arrays where the collector does not see it, below the test's instance: views by NumPy, results of torch.

        What an instance kept in such a way, and the re-run replaced elsewhere, was taken for growth.
        """
        frames, unknown = _Frames(self._class, self._item), self._arrays.intersection(elsewhere)
        objects = self._graph.objects
        before = set(objects)
        if not frames.instances or not unknown:
            return False
        self._take_hidden([objects[identity] for identity in unknown], frames.instances)
        self._climb([value for identity, value in objects.items() if identity not in before], set(), frames)
        from_item, from_frames = self._count_known(frames, objects.keys() - before)
        self._from_item |= from_item
        self._from_frames |= from_frames
        return len(objects) > len(before)

    def _take_hidden(self, orphans: list[object], instances: Sequence[object]) -> None:
        budget = Budget(GRAPH_STEPS)
        inside = [*instances, *get_referents(*instances)]
        for find in finders():
            for link in find(orphans, inside, budget):
                self._graph.add(link.child)
                self._graph.add(link.parent)
                self._graph.connect(id(link.parent), id(link.child))
                self._known[id(link.child)] += 1

    def _expand(self, level: list[object], own: set[int], referrers: _Referrers) -> list[object]:
        new: list[object] = []
        own.update((id(level), id(new)))
        wanted = set(map(id, level))
        containers = referrers.of(level)
        for container in containers:
            held = [identity for identity in map(id, get_referents(container)) if identity in wanted]
            self._known.update(held)
            for child in held:
                self._graph.connect(id(container), child)
            if held and self._graph.add(container):
                new.append(container)
        containers.clear()
        return new

    def held_alone(self, frameworks: Sequence[ReferenceFinder]) -> HeldAlone | None:
        if not self._complete:
            return None
        elsewhere = self._held_elsewhere(frameworks)
        if self._add_hidden(elsewhere):
            if not self._complete:
                return None
            elsewhere = self._held_elsewhere(frameworks)
        alone = self._arrays - self._graph.below(elsewhere)
        by_item = self._graph.below(self._from_item)
        held = alone & (by_item | self._graph.below(self._from_frames))
        return HeldAlone("item" if held & by_item else "frames", held)

    def _held_elsewhere(self, frameworks: Sequence[ReferenceFinder]) -> set[int]:
        """Return the ids of what has a reference that is not accounted for."""
        owners = owner_counter(frameworks)
        owned: dict[int, object] = {}
        counts: dict[int, int] = {}
        found: set[int] = set()
        objects = self._graph.objects
        for identity in list(objects):
            value = objects[identity]
            count = owners(value)
            if count:
                owned[identity], counts[identity] = value, count
            # Native code that owns an array keeps its Python object too, once.
            own = LOOKUP_REFERENCES + (2 if count else 0)
            known = getrefcount(value) - own <= self._known[identity]
            if not known or type(value) is CellType or _has_shared_dict(value, objects):
                found.add(identity)
        # Where neither frames nor the item lead to them, they hold none alone, whatever native code does.
        links = self._links_to(owned, frameworks) if owned and (self._from_frames or self._from_item) else counts
        return found | {identity for identity, count in counts.items() if links[identity] != count}

    def _links_to(self, owned: Mapping[int, object], frameworks: Sequence[ReferenceFinder]) -> Counter[int]:
        """Count the references from the native code of these arrays to these arrays (a loss and its parameters)."""
        found: Counter[int] = Counter()
        budget = Budget(GRAPH_STEPS)
        for framework in frameworks:
            natives = framework.take_census(budget)
            if natives is None:
                continue
            for link in natives.every_link(owned, budget):
                if id(link.parent) in self._graph.objects:
                    found[id(link.child)] += 1
                    self._graph.connect(id(link.parent), id(link.child))
        return found


class _Referrers:
    """Finds the young objects, and those of `old`, that refer to objects, but for those whose ids are in `own`."""

    def __init__(self, own: set[int], old: Sequence[object], few: int) -> None:
        self._own = own
        self._old = old
        self._few = few
        self._above: dict[int, list[object]] | None = None

    def of(self, objects: list[object]) -> list[object]:
        """Return what refers to any of the `objects`, and the old ones in any case."""
        if self._above is None and len(objects) <= self._few:
            children = tuple(objects)  # a tuple is passed on as it is: of a list, Python 3.13 would show a copy
            self._own.add(id(children))
            found = get_referrers(*children)
        else:
            if self._above is None:
                self._above = self._list_young(objects)
            found = list(chain.from_iterable(self._above.get(identity, ()) for identity in map(id, objects)))
        found += self._old
        return list({id(one): one for one in found if id(one) not in self._own}.values())

    def clear(self) -> None:
        """Release the objects: a list here is one more reference to each."""
        self._above = None

    def _list_young(self, objects: list[object]) -> dict[int, list[object]]:
        """List, for each young or old object and these, what refers to it; nothing where there are too many."""
        young = get_objects()
        above: dict[int, list[object]] = {}
        if len(young) > MAX_YOUNG:
            return above
        met = {*map(id, young), *map(id, objects), *map(id, self._old)}
        for container in young:
            for identity in met.intersection(map(id, get_referents(container))):
                above.setdefault(identity, []).append(container)
        young.clear()
        return above


def _has_shared_dict(value: object, met: Collection[int]) -> bool:
    """Tell whether something else refers to an object's ``__dict__``, which shows no values since Python 3.13."""
    if not _VALUES_LIE_IN_OBJECTS:
        return False
    own = instance_dict(value)
    return own is not None and id(own) not in met and getrefcount(own) > LOOKUP_REFERENCES


class _Frames:
    """The references of this thread's running frames, as counts by the id of what their locals certainly refer to.

    `on_stack` are the frames' ids, which Python 3.10 may show as referrers too; `instances` the test's instance, its
    bound methods, and the dicts that it refers to.
    """

    def __init__(self, test_class: type | None, item: Mapping[str, object]) -> None:
        self.references: Counter[int] = Counter()
        self.on_stack: set[int] = set()
        self.instances: list[object] = []
        self._class = test_class
        self._read_frames: list[tuple[dict[str, object], list[int]]] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            self.on_stack.add(id(frame))
            if frame.f_code.co_flags & CO_OPTIMIZED:  # else its namespace is a dict, which shows its references
                values = [value for _, value in local_variables(frame)]
                self._read_frames.append((frame.f_globals, list(map(id, values))))
                for value in values:
                    self._take_instance(value)
            frame = frame.f_back
        for value in item.values():
            self._take_instance(value)
        self._take_keywords(item.get("keywords"))
        callers = [*(set(identities) for _, identities in self._read_frames[1:]), set[int]()]
        for (_, identities), callers_own in zip(self._read_frames, callers, strict=True):
            # What the caller's variable refers to may have been lent to the parameter.
            self.references.update(i for i in identities if not (LENDS_ARGUMENTS and i in callers_own))

    def held(self, objects: Collection[int]) -> set[int]:
        """Return which of these objects a frame refers to that is none of the plugin's."""
        users = [identities for namespace, identities in self._read_frames if not belongs_to_plugin(namespace)]
        return set(chain.from_iterable(users)).intersection(objects)

    def _take_instance(self, value: object) -> None:
        is_method = type(value) is MethodType
        instance = value.__self__ if is_method else value  # type: ignore[attr-defined]  # a method, as checked
        if type(instance) is not self._class or any(value is known for known in self.instances):
            return
        self.instances.append(value)
        if is_method:
            self._take_instance(instance)  # before pytest 8.2 the item refers to it by this method alone
        else:
            self.instances += [attributes for attributes in get_referents(value) if type(attributes) is dict]

    def _take_keywords(self, keywords: object) -> None:
        """Take the method that `functools.wraps` names on another: the item keeps a function's attributes (pytest 8.2)."""
        for markers in get_referents(keywords):
            if type(markers) is dict and "__wrapped__" in markers:
                self.instances += [keywords, markers]
                self._take_instance(markers["__wrapped__"])
