"""Name the entries of a `weakref.WeakKeyDictionary`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from pytest_gpuleak.explain.edge_to_edit import KEEPS_KEY
from pytest_gpuleak.explain.edges.chain import Edge
from pytest_gpuleak.explain.edges.way_back import reaches
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from pytest_gpuleak.explain.edges.chain import Chain


def name_in_weak_keys(chain: Chain, position: int, _: type) -> Edge | None:
    """Name a value by its key, not by the dict of weak references (Lib/weakref.py, WeakKeyDictionary.data)."""
    namespace = safe_access.instance_dict(chain.objects[position])
    data = None if namespace is None else dict.get(namespace, "data")
    length = next((number for number in (1, 2) if chain.at(position + number) is data), None)
    if type(data) is not dict or length is None or not chain.reaches(position + length + 1):
        return None
    value = chain.at(position + length + 1)
    key = chain.lookups.key(data, value)
    if key is None or not safe_access.is_a(key[0], weakref.ReferenceType):
        return None
    referent = weakref.ReferenceType.__call__(key[0])
    label = chain.label(position)
    if referent is not None and reaches((value,), referent):
        label += KEEPS_KEY
    return Edge(f"[{safe_access.key_text(key[0]).replace('<weakref to ', '<', 1)}]", label, length + 1)
