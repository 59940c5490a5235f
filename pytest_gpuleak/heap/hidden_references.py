"""Find references that the collector cannot see, because C or C++ objects hold them.

The frameworks are asked first, in rounds (`ReferenceFinder`). Without an answer, the finders, which walk over the whole
heap, are asked once a search for objects with unaccounted references.
"""

from __future__ import annotations

from dataclasses import dataclass
from gc import get_referents
from itertools import chain, compress, filterfalse, repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.collector import get_objects, get_referrers
from pytest_gpuleak.heap.frames import belongs_to_plugin, local_variables
from pytest_gpuleak.heap.immortal_containers import is_tracked
from pytest_gpuleak.heap.referrers import untouchable_modules
from pytest_gpuleak.heap.safe_access import class_module
from pytest_gpuleak.heap.type_sieve import TypeSieve, may_refer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pytest_gpuleak.heap.budget import Budget


_CHUNK: Final = 1024

RING_ROOT: Final = "a cycle through C++ that no collector frees"
"""Root of an array that a ring of references keeps, some of them in C++."""


@dataclass(frozen=True, slots=True)
class Link:
    """A reference that `gc.get_referrers` does not show, as written (``.base``); None: the ordinary naming finds it."""

    parent: object
    child: object
    edge: str | None = None


HeapFinder: TypeAlias = "Callable[[Sequence[object], Sequence[object], Budget], list[Link]]"
"""Finds holders that the collector does not show, in a walk over the heap. One file a library.

Returns links that lead to the objects that it is handed first, live ones without visible referrers, up to something visible.
Then come locals of running functions, which `gc.get_objects` does not show.
"""


def visible_objects(extra: Sequence[object], ignore: Collection[int], budget: Budget) -> Iterator[list[object]]:
    """Yield `extra`, tracked containers and the untracked objects that they refer to, in lists that must not be kept.

    `ignore` has the ids of containers that are left out.
    """
    # Listed before the generator is made: through it, Python 3.10 would lead to the frames of the search itself.
    return _in_batches(get_objects(), extra, {*ignore, *untouchable_modules()}, budget)


def _in_batches(
    containers: list[object], extra: Sequence[object], ignore: Collection[int], budget: Budget
) -> Iterator[list[object]]:
    try:
        yield list(extra)
        for start in range(0, len(containers), _CHUNK):
            chunk = [container for container in containers[start : start + _CHUNK] if id(container) not in ignore]
            references = get_referents(*chunk)
            if budget.worked(len(chunk) + len(references)):
                return
            chunk.extend(filterfalse(is_tracked, references))
            yield chunk
    finally:
        containers.clear()  # it may hold this frame


@dataclass(eq=False, repr=False)
class Descent:
    """Walk down from untracked containers, in which there is no ring, to objects that the search wants, for one look.

    Of what `sieve` picks, `ends` tells where a path ends, `leads_on` whether that is wanted, and `hides` which are
    untracked containers. `links` collects the references on wanted paths.
    """

    ends: Callable[[object], bool]
    leads_on: Callable[[object], bool]
    hides: Callable[[object], bool]
    sieve: TypeSieve
    budget: Budget

    def __post_init__(self) -> None:
        self.links: list[Link] = []
        self._met: set[int] = set()
        self._leading: set[int] = set()
        self._above: dict[int, list[tuple[object, object]]] = {}

    def enter(self, containers: Iterable[object]) -> None:
        """Look into untracked containers, and into those inside them."""
        parents = self._unmet(containers)
        while parents:
            contents = list(map(get_referents, parents))
            children = list(chain.from_iterable(contents))
            if self.budget.worked(len(parents) + len(children)):
                return
            owners = chain.from_iterable(map(repeat, parents, map(len, contents)))
            inner: list[object] = []
            for parent, child in compress(zip(owners, children, strict=True), self.sieve.marks(children)):
                if self.ends(child):
                    if self.leads_on(child):
                        self._link(parent, child)
                elif self.hides(child):
                    if id(child) in self._leading:
                        self._link(parent, child)
                    else:
                        self._above.setdefault(id(child), []).append((parent, child))
                        inner.append(child)
            parents = self._unmet(inner)

    def _unmet(self, containers: Iterable[object]) -> list[object]:
        found = {id(container): container for container in containers}
        for met in found.keys() & self._met:
            del found[met]
        self._met.update(found)
        return list(found.values())

    def _link(self, parent: object, child: object) -> None:
        pending = [(parent, child)]
        while pending:
            parent, child = pending.pop()
            self.links.append(Link(parent, child))
            if id(parent) not in self._leading:
                self._leading.add(id(parent))
                pending.extend(self._above.pop(id(parent), ()))


def lead_through_dicts(
    orphans: Sequence[object],
    extra: Sequence[object],
    may_lead: Callable[[type], bool],
    leads_on: Callable[[object], bool],
    budget: Budget,
) -> list[Link]:
    """Ask `leads_on` of each object whose type `may_lead`; return links from untracked dicts and tuples to those."""
    leading: dict[int, bool] = {}  # by the id of the type: most values are dicts and tuples

    def may_lead_on(value: object) -> bool:
        found = leading.get(id(type(value)))
        if found is None:
            found = leading[id(type(value))] = may_lead(type(value))
        return found

    def may_hide(value: object) -> bool:
        return (type(value) is dict or type(value) is tuple) and not is_tracked(value)

    sieve = TypeSieve(lambda kind: kind is dict or kind is tuple or may_lead(kind))
    descent = Descent(may_lead_on, leads_on, may_hide, sieve, budget)
    own = {id(orphans), id(extra), *untouchable_modules()}
    inside = get_referents(*(value for value in extra if id(value) not in own))
    for values in visible_objects([*extra, *inside], own, budget):
        picked = sieve.pick(values)
        for value in filter(may_lead_on, picked):
            leads_on(value)
        descent.enter(filter(may_hide, filterfalse(is_tracked, picked)))
    return descent.links


def untracked_containers(orphans: Sequence[object], extra: Sequence[object], budget: Budget) -> list[Link]:
    """Find untracked containers of types that the collector knows, in a walk over the heap (see `HeapFinder`).

    `PyStructSequence_New` (Objects/structseq.c) does not track what it makes, such as torch's named results
    (``logits.max(1)``), so `gc.get_referrers` does not show it.
    """
    wanted = set(map(id, orphans))
    wanted_types = set(map(id, map(type, orphans)))

    def may_hide(value: object) -> bool:
        return not is_tracked(value) and _may_hide(type(value))

    def is_wanted(value: object) -> bool:
        return id(value) in wanted

    hiding = TypeSieve(_may_hide)
    inner = TypeSieve(lambda kind: _may_hide(kind) or id(kind) in wanted_types)
    descent = Descent(is_wanted, is_wanted, may_hide, inner, budget)
    for values in visible_objects(extra, {id(orphans), id(extra)}, budget):
        descent.enter(hiding.pick(list(filterfalse(is_tracked, values))))
    return descent.links


def _may_hide(kind: type) -> bool:
    # No untracked dict, tuple or static class holds tracked objects.
    return kind is not dict and kind is not tuple and may_refer(kind)


def unshown_containers(orphans: Sequence[object], extra: Sequence[object], budget: Budget) -> list[Link]:
    """Find tracked containers that `gc.get_referrers` does not show, since their C code drops what it is told there.

    A task of asyncio's, up to Python 3.11, so keeps its result or exception (Modules/_asynciomodule.c, TaskObj_traverse).
    See `HeapFinder`.
    """
    wanted = dict(zip(map(id, orphans), orphans, strict=True))
    sieve = TypeSieve(_is_of_library)
    links: list[Link] = []
    for values in visible_objects(extra, {id(orphans), id(extra), id(wanted)}, budget):
        picked = sieve.pick(list(filter(is_tracked, values)))
        if budget.worked(len(picked)) or wanted.keys().isdisjoint(map(id, get_referents(*picked))):
            continue
        for container in picked:
            children = wanted.keys() & set(map(id, get_referents(container)))
            links += [Link(container, wanted[child]) for child in children]
    shown = set(map(id, get_referrers(*orphans))) if links else set()
    return [link for link in links if id(link.parent) not in shown]


def _is_of_library(kind: type) -> bool:
    return may_refer(kind) and class_module(kind) not in (None, "builtins")


_MAX_FRAMES: Final = 100
"""Frames of one greenlet that are read, the innermost first."""


def suspended_greenlets(orphans: Sequence[object], extra: Sequence[object], budget: Budget) -> list[Link]:
    """Find greenlets in a walk over the heap (see `HeapFinder`): the collector shows nothing that their frames refer to."""
    kind = safe_access.loaded_class("greenlet", "greenlet")
    if kind is None:
        return []
    wanted = set(map(id, orphans))
    sieve = TypeSieve(lambda cls: safe_access.is_subclass(cls, kind))
    links: list[Link] = []
    for values in visible_objects(extra, {id(orphans), id(extra)}, budget):
        for greenlet in sieve.pick(values):
            links += [Link(greenlet, value, edge) for value, edge in _locals_of(greenlet, kind) if id(value) in wanted]
    return links


def _locals_of(greenlet: object, kind: type) -> Iterator[tuple[object, str]]:
    """Yield the locals of a greenlet's frames, each with its text in a path."""
    frame: Any = safe_access.slot(greenlet, kind, "gr_frame")
    way = ".gr_frame"
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        for name, value in () if belongs_to_plugin(frame.f_globals) else local_variables(frame):
            yield value, f"{way}.f_locals[{safe_access.cut_name(name)!r}]"
        frame, way = frame.f_back, f"{way}.f_back"
