"""Write references in Python: a small function for each type, as in torch's ``utils/viz/_cycles.py``."""

from __future__ import annotations

import collections
import types
from gc import get_referents
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.registry import own_layouts
from pytest_gpuleak.explain.edges import interpreter as interpreter_edges
from pytest_gpuleak.explain.edges import library as library_edges
from pytest_gpuleak.explain.edges.chain import Chain, Edge
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable

_LAYOUTS: Final = own_layouts()


def name_edge(chain: Chain, position: int) -> Edge:
    """Name the reference from the object at `position`. Never fails; at worst it says inside what the path goes on."""
    kind = type(chain.objects[position])
    for namer in chain.lookups.once("namers", kind, lambda: _namers_of(kind)):
        edge = namer(chain, position)
        if edge is not None:
            return edge
    edge = library_edges.name_edge(chain, position) or _name_attribute(chain, position)
    if edge is not None:
        return edge
    label, owner, value = chain.label(position), chain.objects[position], chain.at(position + 1)
    inside = next(filter(None, (layout.inside(owner, value) for layout in _LAYOUTS)), f" (inside {label})")
    return Edge(inside, label)


def _namers_of(kind: type) -> list[Callable[[Chain, int], Edge | None]]:
    found: list[Callable[[Chain, int], Edge | None]] = []
    for cls in safe_access.mro(kind):
        for namers in (_NAMERS, interpreter_edges.NAMERS):
            namer = namers.get(id(cls))
            if namer is not None:
                found.append(namer)
    return found


def _attribute_text(cls: type, name: object) -> str:
    """Write ``.name``, or by ``__dict__`` where the name cannot be written or a descriptor of `cls` hides it."""
    if not safe_access.is_attribute_name(name):
        return f".__dict__[{safe_access.key_text(name)}]"
    values = (safe_access.class_dict(base).get(name) for base in safe_access.mro(cls))  # type: ignore[call-overload]  # a str
    found = next((value for value in values if value is not None), None)
    # A property, say, which wins over the instance's dict (language reference, "Invoking Descriptors").
    wins = any(_has(type(found), method) for method in ("__set__", "__delete__"))
    return f".__dict__[{name!r}]" if wins else f".{name}"


def _has(cls: type, method: str) -> bool:
    return any(method in safe_access.class_dict(base) for base in safe_access.mro(cls))


def _text_of(chain: Chain, cls: type, name: object) -> str:
    if type(name) is not str:
        return _attribute_text(cls, name)
    texts: dict[str, str] = chain.lookups.once("attributes", cls, dict)
    if name not in texts:
        texts[name] = _attribute_text(cls, name)
    return texts[name]


def _name_attribute(chain: Chain, position: int) -> Edge | None:
    """Name an instance's attribute: in its ``__dict__`` (a link of the chain or not), a slot, a C member."""
    parent, child = chain.objects[position], chain.at(position + 1)
    label = chain.label(position)
    namespace = safe_access.instance_dict(parent)
    if namespace is not None:
        length = 2 if namespace is child else 1
        beyond = chain.reaches(position + length)
        key = chain.lookups.key(namespace, chain.at(position + length)) if beyond else None
        if key is not None:
            return Edge(_text_of(chain, type(parent), key[0]), label, length)
        if namespace is child:
            return Edge(".__dict__", label)
    for name, value in chain.lookups.members(parent):
        if value is child:
            text = f".{name}" if safe_access.is_attribute_name(name) else f" (member {safe_access.cut_name(name)})"
            return Edge(text, label)
    return None


def _name_item_of_dict(chain: Chain, position: int) -> Edge | None:
    parent = chain.objects[position]
    text = chain.item(parent, position + 1)
    if text is None and chain.lookups.is_key(parent, chain.at(position + 1)):
        text = " (a key)"
    return None if text is None else Edge(text, chain.label(position))


def _sequence(base: Any) -> Callable[[Chain, int], Edge | None]:
    def name_item(chain: Chain, position: int) -> Edge | None:
        try:
            index = chain.lookups.index(chain.objects[position], chain.at(position + 1), base)
        except RuntimeError:  # another thread changed the deque
            return None
        return None if index is None else Edge(f"[{index}]", chain.label(position))

    return name_item


_name_by_index: Final = _sequence(tuple)


def _name_item_of_tuple(chain: Chain, position: int) -> Edge | None:
    """Name a tuple's item: by field in a named tuple, else by index."""
    edge = _name_by_index(chain, position)
    if edge is None or type(chain.objects[position]) is tuple:
        return edge
    field = safe_access.field_of_tuple(chain.objects[position], int(edge.text[1:-1]))
    return edge if field is None else Edge(f".{field}", edge.label)


def _unordered(base: Any) -> Callable[[Chain, int], Edge | None]:
    def name_item(chain: Chain, position: int) -> Edge | None:
        found = chain.lookups.contains(chain.objects[position], chain.at(position + 1), base)
        return Edge(" (item of set)", chain.label(position)) if found else None

    return name_item


def _name_in_class(chain: Chain, position: int) -> Edge | None:  # noqa: PLR0911 - a return for each shape
    """Name an attribute of a class, whose namespace's dict is a link of the chain."""
    cls, namespace = chain.objects[position], chain.at(position + 1)
    if type(namespace) is not dict or not chain.reaches(position + 2):
        return None
    if id(namespace) not in set(map(id, get_referents(safe_access.class_dict(cls)))):
        return None
    key = chain.lookups.key(namespace, chain.at(position + 2))
    if key is None:
        return None
    name, value = key[0], chain.at(position + 2)
    label = f"class {safe_access.cut_name(safe_access.class_qualname(cls))}"
    edge = library_edges.name_in_enum(chain, position, label)
    if edge is not None:
        return edge
    if not safe_access.is_attribute_name(name):
        return Edge(f".__dict__[{safe_access.key_text(name)}]", label, 2)
    if type(value) in (staticmethod, classmethod) and chain.at(position + 3) is value.__func__:
        return Edge(f".{name}" + (".__func__" if type(value) is classmethod else ""), label, 3)
    return Edge(f".{name}" if _shows_itself(value) else f".__dict__[{name!r}]", label, 2)


def _shows_itself(value: object) -> bool:
    return type(value) in (types.FunctionType, property, safe_access.LRU_WRAPPER) or not _has(type(value), "__get__")


def _name_in_module(chain: Chain, position: int) -> Edge | None:
    """Name a global of a module that is gone from `sys.modules`, or part of an extension module's state."""
    namespace = chain.at(position + 1)
    if safe_access.module_dict(chain.objects[position]) is namespace and chain.reaches(position + 2):
        text = chain.attribute(namespace, position + 2)
        if text is not None:
            return Edge(text, "module", 2)
    return None if namespace is None else Edge(" (module state)", "module")


def _name_behind_proxy(chain: Chain, position: int) -> Edge | None:
    mapping = chain.at(position + 1)
    is_dict = chain.reaches(position + 2) and safe_access.is_a(mapping, dict)
    text = chain.item(mapping, position + 2) if is_dict else None
    return None if text is None else Edge(text, "mappingproxy", 2)


_NAMERS: Final[dict[int, Callable[[Chain, int], Edge | None]]] = {
    id(dict): _name_item_of_dict,
    id(list): _sequence(list),
    id(tuple): _name_item_of_tuple,
    id(collections.deque): _sequence(collections.deque),
    id(set): _unordered(set),
    id(frozenset): _unordered(frozenset),
    id(type): _name_in_class,
    id(types.ModuleType): _name_in_module,
    id(types.MappingProxyType): _name_behind_proxy,
}
"""Namers by the id of a built-in type: comparing or hashing a user's type would run its metaclass."""
