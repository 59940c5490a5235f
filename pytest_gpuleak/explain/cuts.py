"""The references that go when a reader lets go of a holder, which a further search ignores."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.adapters.registry import own_layouts
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.explain.roots.root import Root

Cut = tuple[int, int]
"""An ignored reference: the ids of the referrer and of the referent."""

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
