"""Find what hides a target behind NumPy: views (``tensor.numpy()``), arrays of objects, iterators, structured scalars.

`gc.get_referrers` shows neither arrays nor dicts and tuples that hold only arrays, since both are untracked
(Objects/dictobject.c, MAINTAIN_TRACKING; Objects/tupleobject.c, _PyTuple_MaybeUntrack).
"""

from __future__ import annotations

from gc import get_referents
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.numpy.memory import Ndarrays
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.hidden_references import Link, lead_through_dicts
from pytest_gpuleak.heap.immortal_containers import is_tracked
from pytest_gpuleak.heap.library_types import ArrayWrappers, extension_class

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.heap.budget import Budget

_MAX_BASES: Final = 16
_MAX_NESTED: Final = 16
"""Untracked containers that are followed one inside the other, below an array of objects."""


def array_bases(orphans: Sequence[object], extra: Sequence[object], budget: Budget) -> list[Link]:
    """Find arrays, by bases or elements, and what wraps them or holds a target, in a walk over the heap (see `HeapFinder`)."""
    array_class = extension_class("numpy", "ndarray")
    if array_class is None:
        return []
    bases = _Bases(orphans, array_class)
    led = lead_through_dicts(orphans, extra, bases.may_lead, bases.lead_to_wanted, budget)
    return bases.links + led


class _Bases:
    """Follows arrays along their bases to wanted objects, and collects the `links` found."""

    def __init__(self, orphans: Sequence[object], array_class: type) -> None:
        self.links: list[Link] = []
        self._wanted = set(map(id, orphans))
        self._array_class = array_class
        self._arrays = Ndarrays()
        self._wrappers = ArrayWrappers()
        self._linked: set[int] = set()
        self._wrapped: set[tuple[int, str]] = set()
        self._met: set[int] = set()
        self._holding: set[int] = set()

    def may_lead(self, kind: type) -> bool:
        return safe_access.is_subclass(kind, self._array_class) or self._wrappers.is_wrapper_type(kind)

    def is_array(self, value: object) -> bool:
        return safe_access.is_a(value, self._array_class)

    def lead_to_wanted(self, array: Any, depth: int = 0) -> bool:
        if not self.is_array(array):
            return self._wraps_wanted(array) or id(array) in self._wanted
        leads = self._has_wanted_elements(array, depth)
        return self._has_wanted_base(array) or leads or id(array) in self._wanted

    def _wraps_wanted(self, wrapper: object) -> bool:
        found = False
        for edge, part in self._wrappers.inside(wrapper):
            if self.may_lead(type(part)) and self.lead_to_wanted(part):
                found = True
                if (id(wrapper), edge) not in self._wrapped:
                    self._wrapped.add((id(wrapper), edge))
                    self.links.append(Link(wrapper, part, edge))
        return found

    def _has_wanted_elements(self, array: Any, depth: int) -> bool:
        if id(array) in self._met:
            return id(array) in self._holding
        self._met.add(id(array))
        for place, element in self._arrays.placed_elements(array):
            if id(element) in self._wanted or self._hides_wanted(element, depth + 1):
                self._holding.add(id(array))
                self.links.append(Link(array, element, place))
        return id(array) in self._holding

    def _hides_wanted(self, element: object, depth: int) -> bool:
        """Follow what an array alone holds and the collector does not track: an array, or a dict or tuple with one."""
        if depth > _MAX_NESTED:
            return False
        if self.may_lead(type(element)):
            return self.lead_to_wanted(element, depth)
        if type(element) not in (dict, tuple) or is_tracked(element):
            return False
        leading = [part for part in get_referents(element) if self._hides_wanted(part, depth + 1)]
        self.links += [Link(element, part) for part in leading]
        return bool(leading)

    def _has_wanted_base(self, array: Any) -> bool:
        chain = [array]
        while len(chain) <= _MAX_BASES and self.is_array(chain[-1]):
            chain.append(safe_access.slot(chain[-1], self._array_class, "base"))
            if id(chain[-1]) in self._wanted:
                break
        else:
            return False
        for parent, child in pairwise(chain):
            if id(parent) not in self._linked:
                self._linked.add(id(parent))
                self.links.append(Link(parent, child, ".base"))
        return True
