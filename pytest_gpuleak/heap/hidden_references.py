"""References that the collector cannot see, because C or C++ objects hold them.

The frameworks are asked first, in rounds (`ReferenceFinder`). Without an answer, the finders, which walk over the whole
heap, are asked once a search for objects with unaccounted references; the search goes on from the containers they name.
Memory that was lent through an opaque C structure (DLPack) is recognised by its address (`adapters.dlpack`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, compress, filterfalse, repeat
from typing import TYPE_CHECKING, Final, Protocol

from pytest_gpuleak.heap.referrers import get_objects, get_referents, is_tracked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pytest_gpuleak.heap.referrers import Deadline
    from pytest_gpuleak.heap.type_sieve import TypeSieve


_CHUNK: Final = 1024

RING_ROOT: Final = "a cycle through C++ that no collector frees"
"""Root of an array that a ring of references keeps, some of them in C++."""


@dataclass(frozen=True, slots=True)
class Link:
    """A reference that `gc.get_referrers` does not show.

    `edge` is how it is written in Python (``.base``); None where the ordinary naming finds it.
    """

    parent: object
    child: object
    edge: str | None = None


class NativeEdgeFinder(Protocol):
    """Finds holders that the collector does not show. One file a library."""

    def find(self, orphans: Sequence[object], extra: Sequence[object], deadline: Deadline) -> list[Link]:
        """Return links that lead to `orphans`, live objects without visible referrers, up to something visible.

        `extra` has objects that `gc.get_objects` does not show: locals of running functions.
        """


def visible_objects(extra: Sequence[object], ignore: Collection[int], deadline: Deadline) -> Iterator[list[object]]:
    """Yield tracked containers and the untracked objects that they refer to, thousands at a time. Keep no list.

    `extra` is yielded too; `ignore` has the ids of containers that are left out.
    """
    # Listed before the generator is made: through it, Python 3.10 would lead to the frames of the search itself.
    return _in_batches(get_objects(), extra, ignore, deadline)


def _in_batches(
    containers: list[object], extra: Sequence[object], ignore: Collection[int], deadline: Deadline
) -> Iterator[list[object]]:
    try:
        yield list(extra)
        for start in range(0, len(containers), _CHUNK):
            chunk = [container for container in containers[start : start + _CHUNK] if id(container) not in ignore]
            references = get_referents(*chunk)
            if deadline.worked(len(chunk) + len(references)):
                return
            chunk.extend(filterfalse(is_tracked, references))
            yield chunk
    finally:
        containers.clear()  # it may hold this frame


class Descent:
    """Walk down from untracked containers to the objects that the search wants. One instance a look.

    Each container is read once, whatever holds it. A container that the collector does not track holds no tracked
    object, so its content is no ring. `ends` tells where a path ends, `leads_on` whether that is wanted, and `hides`
    whether an object is an untracked container; both are asked for the objects that `sieve` picks. `links` collects
    the references on wanted paths.
    """

    def __init__(
        self,
        ends: Callable[[object], bool],
        leads_on: Callable[[object], bool],
        hides: Callable[[object], bool],
        sieve: TypeSieve,
        deadline: Deadline,
    ) -> None:
        self.links: list[Link] = []
        self._ends = ends
        self._leads_on = leads_on
        self._hides = hides
        self._sieve = sieve
        self._deadline = deadline
        self._met: set[int] = set()
        self._leading: set[int] = set()
        self._above: dict[int, list[tuple[object, object]]] = {}

    def enter(self, containers: Iterable[object]) -> None:
        """Look into untracked containers, and into those inside them."""
        parents = self._unmet(containers)
        while parents:
            contents = list(map(get_referents, parents))
            children = list(chain.from_iterable(contents))
            if self._deadline.worked(len(parents) + len(children)):
                return
            owners = chain.from_iterable(map(repeat, parents, map(len, contents)))
            inner: list[object] = []
            for parent, child in compress(zip(owners, children, strict=True), self._sieve.marks(children)):
                if self._ends(child):
                    if self._leads_on(child):
                        self._link(parent, child)
                elif self._hides(child):
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
