"""The references that go when a reader lets go of a holder, which a further search ignores."""

from __future__ import annotations

import collections
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.registry import own_layouts
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.explain.roots.root import Root

Cut = tuple[int, int]
"""An ignored reference: the ids of the referrer and of the referent."""

_ENTRIES: Final = frozenset(
    {
        id(list),
        id(set),
        id(collections.deque),
        id(collections.OrderedDict),
        id(collections.defaultdict),
        id(safe_access.LRU_WRAPPER),
    }
)
_LAYOUTS: Final = own_layouts()
"""Where modules keep what they are made of: a reader does not take a layer's weight out to free it."""


def cuts_of(root: Root, chain: Sequence[object]) -> tuple[Cut, ...]:
    """Return the references to remove: the first entry of a container that can shrink, else the last reference.

    Parts of a module are passed over: the reader lets go of the whole module. One attribute may be two references to
    the collector, which shows the object, its ``__dict__``, or both.
    """
    if len(chain) == 1:
        namespace = safe_access.module_dict(safe_access.loaded_module(root.module or ""))
        return ((id(namespace), id(chain[0])),)
    position = _chosen(chain)
    parent, child = chain[position], id(chain[position + 1])
    found = [(id(parent), child)]
    if position > 0 and parent is safe_access.instance_dict(chain[position - 1]):
        found.append((id(chain[position - 1]), child))
    attributes = safe_access.instance_dict(parent)
    if attributes is not None:
        found.append((id(attributes), child))
    return tuple(found)


def _chosen(chain: Sequence[object]) -> int:
    """Return the position of the object whose reference to the next one is removed."""
    structure = _structure(chain)
    for position, parent in enumerate(chain[:-1]):
        entries = id(type(parent)) in _ENTRIES
        if type(parent) is dict:
            entries = position == 0 or not _is_namespace(parent, chain[position - 1])
        if entries and id(parent) not in structure:
            return position
    pairs = list(enumerate(pairwise(chain)))
    for position, (parent, child) in reversed(pairs):
        if id(parent) not in structure and id(child) not in structure:
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
    return (
        safe_access.is_a(owner, type)
        or value is safe_access.instance_dict(owner)
        or value is safe_access.module_dict(owner)
    )
