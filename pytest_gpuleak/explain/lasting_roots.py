"""Walk down from roots that outlive the tests: what they lead to is no garbage, and has a name, without a search.

The roots are the user's own globals, the wider fixtures that are set up, and what earlier searches have found. Which of
them are known changes no verdict: what is not reached is collected for and searched for.
"""

from __future__ import annotations

import dataclasses
import types
import weakref
from collections import deque
from gc import get_referents
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.explain.roots.root import LASTING, module_names
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.collector import PausedCollector, get_objects
from pytest_gpuleak.heap.immortal_containers import is_tracked
from pytest_gpuleak.heap.referrers import reaches_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pytest_gpuleak.adapters.reference_protocol import ReferenceFinder
    from pytest_gpuleak.explain.roots.root import ModuleNames
    from pytest_gpuleak.explain.roots.roots import Root
    from pytest_gpuleak.explain.search import Explanation

MAX_KNOWN: Final = 1000
"""Roots that are remembered. Of more, those met longest ago are forgotten."""

MAX_WALKED: Final = 20_000
"""References that are followed down from the roots, nearest first: milliseconds, where a search takes a quarter of a second."""

STEPS: Final = 5_000_000
"""Steps (`heap.budget`) of the search among what the walk has met."""

_HARNESS: Final = ("_pytest", "pluggy")
"""Packages whose objects lead to all tests, and are not followed."""


@dataclasses.dataclass
class _Known:
    """A root met before. It refers to no user object."""

    root: Root
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


class Reached(NamedTuple):
    """What a walk down has shown: the `explanations` of the targets that it has met, by id; the `older` objects it met."""

    explanations: dict[int, Explanation]
    older: list[object]


class LastingRoots:
    """Knows roots by names and weak references. `is_user_file` tells which modules are the user's own."""

    def __init__(self, is_user_file: Callable[[str], bool]) -> None:
        self._known: dict[str, _Known] = {}
        self._is_user_file = is_user_file
        self._loaded: ModuleNames | None = None
        self._names: list[str] = []

    def remember(self, root: Root, value: object) -> None:
        """Remember a root found by a search of the whole heap, with its object."""
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
            known = _Known(root, reference)
        self._known[root.text] = known  # moved to the end, as met last
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def reach(
        self,
        targets: list[object],
        frameworks: Sequence[ReferenceFinder],
        fixtures: Sequence[object] = (),
        hidden: Collection[int] = (),
        older: Collection[int] = (),
    ) -> Reached:
        """Explain the targets that the roots lead to, and return those of the `older` objects that the walk meets.

        Call it while the collector hides older objects. `targets` are visible, `fixtures` pytest's definitions of the wider
        fixtures that may be set up. Targets that are `hidden` are told by id, as the `older` are, and added where the walk
        meets them.
        """
        from pytest_gpuleak.explain.search import Question, Search

        with PausedCollector():
            visible = get_objects()
            young = set(map(id, visible))
            visible.clear()
            above = _Walk(young, {*hidden, *older})
            for known in self._known.values():
                for namespace, value in known.holders():
                    if namespace is not None:
                        above.add(value, namespace)
                    above.follow(value)
            for definition in fixtures:
                above.follow_fixture(definition)
            for module, namespace in self._namespaces():
                above.follow_globals(module, namespace)
            above.run(frameworks)
            met = [above.met[one] for one in older if one in above.met]
            found = [above.met[one] for one in hidden if one in above.met]
            targets += found
            ignore = {id(targets), id(fixtures), id(above.met), id(found), id(met)}
            question = Question(targets, Budget(STEPS), ignore, above.found, walks=False, frameworks=frameworks)
            search = Search(question)
            search.run()
            return Reached(search.explained(LASTING), met)

    def reach_up(self, targets: list[object]) -> dict[int, Explanation]:
        """Like `reach`, by a search up through the visible whole heap, and remember the roots.

        What native code keeps is not asked for: that takes longer than the collection which this spares.
        """
        from pytest_gpuleak.explain.search import SEARCH_STEPS, Question, Search

        with PausedCollector():
            question = Question(targets, Budget(SEARCH_STEPS), {id(targets)}, native=False)
            search = Search(question)
            search.run()
            return search.explained(LASTING, self.remember)

    def _namespaces(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the user's modules, by name."""
        loaded = module_names()
        if loaded is not self._loaded:
            self._loaded = loaded
            files = {
                name: safe_access.plain_text(safe_access.loaded(name, "__file__")) for name in loaded.names.values()
            }
            self._names = [name for name, file in files.items() if file is not None and self._is_user_file(file)]
        for name in self._names:
            namespace = safe_access.module_dict(safe_access.loaded_module(name))
            if namespace is not None:
                yield name, namespace


class _Walk:
    """Walks down, breadth first; `found` has the referrers that are not `young`, by the id of what they refer to.

    `met` has those of the `wanted` objects, by id, that the walk has met.
    """

    def __init__(self, young: Collection[int], wanted: Collection[int]) -> None:
        self.found: dict[int, list[Any]] = {}
        self.met: dict[int, Any] = {}
        self._young = young
        self._wanted = wanted
        self._objects: list[Any] = []
        self._pending: deque[Any] = deque()
        self._away: dict[int, bool] = {}

    def add(self, value: object, holder: object) -> None:
        """Note that `holder` refers to a value."""
        self.found.setdefault(id(value), []).append(holder)
        self._meet(value)

    def _meet(self, value: object) -> None:
        self._objects.append(value)
        if id(value) in self._wanted:
            self.met[id(value)] = value

    def follow(self, value: object) -> None:
        """Walk down from a value."""
        if value is not None and is_tracked(value):
            self._pending.append(value)

    def follow_globals(self, module: str, namespace: dict[str, Any]) -> None:
        """Walk down from a module's globals."""
        for name, value in list(dict.items(namespace)):
            if is_tracked(value):
                self.add(value, namespace)
                # By its loader and its specification a module leads to pytest's configuration.
                if not (type(name) is str and name.startswith("__")) and _may_hold(value, module):
                    self.follow(value)

    def follow_fixture(self, definition: object) -> None:
        """Walk down from the value of pytest's `FixtureDef`, and no other way: it leads to all of pytest."""
        result = (safe_access.instance_dict(definition) or {}).get("cached_result")
        if type(result) is not tuple or not result:
            return
        attributes = safe_access.instance_dict(definition)
        for holder in (definition, attributes):
            for child in get_referents(holder):
                if child is result or child is attributes:
                    self.add(child, holder)
        self.add(result[0], result)
        self.follow(result[0])

    def run(self, frameworks: Sequence[ReferenceFinder]) -> None:
        """Walk, as far as `MAX_WALKED` references, and to what native code keeps for the objects met."""
        met: set[int] = set()
        room = MAX_WALKED
        while self._pending and room > 0:
            parent = self._pending.popleft()
            if id(parent) in met:
                continue
            met.add(id(parent))
            for child in filter(is_tracked, get_referents(parent)):
                room -= 1
                if room < 0:
                    break  # one list may hold millions
                self.add(child, parent)
                if id(child) not in self._young and not self._leads_away(child):
                    self._pending.append(child)
        for framework in frameworks if len(self.met) < len(self._wanted) else ():
            for value in framework.below(self._objects):
                self._meet(value)
        self._objects.clear()  # the search would follow this list as one more holder of each

    def _leads_away(self, value: object) -> bool:
        kind = type(value)
        if kind is dict:
            return reaches_everything(value)
        if id(kind) not in self._away:  # for all but a dict its class decides
            in_harness = any(safe_access.in_package(kind, package) for package in _HARNESS)
            self._away[id(kind)] = in_harness or reaches_everything(value)
        return self._away[id(kind)]


def _may_hold(value: object, module: str) -> bool:
    """Tell whether a global is worth following: containers, instances, and the module's own classes."""
    kind = type(value)
    if kind is types.FunctionType or kind is types.BuiltinFunctionType:
        return False
    if safe_access.is_subclass(kind, type):
        return safe_access.class_module(value) == module  # type: ignore[arg-type]  # it is a class
    return not reaches_everything(value)
