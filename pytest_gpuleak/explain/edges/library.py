"""Name references in the standard library's objects, alike in all Python versions: fingerprints are made of them."""

from __future__ import annotations

import contextvars
import sys
import types
import weakref
from collections import deque
from gc import get_referents
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.explain.edge_to_edit import KEEPS_KEY
from pytest_gpuleak.explain.edges.chain import Edge
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.referrers import untouchable_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpuleak.explain.edges.chain import Chain


_MAX_ENUM_LINKS: Final = 5
"""References between an enum class and a member's value, through the class's own maps (Lib/enum.py)."""


def name_edge(chain: Chain, position: int) -> Edge | None:
    """Name the reference from an object of a type that is known here; None for any other type."""
    kind = type(chain.objects[position])
    for namer, cls in chain.lookups.once("library", kind, lambda: _namers_of(kind)):
        edge = namer(chain, position, cls)
        if edge is not None:
            return edge
    return None


def _namers_of(kind: type) -> list[tuple[Callable[[Chain, int, Any], Edge | None], type]]:
    found: list[tuple[Callable[[Chain, int, Any], Edge | None], type]] = []
    for (module, name), namer in _NAMERS.items():
        cls = safe_access.loaded_class(module, name)
        if cls is not None and safe_access.is_subclass(kind, cls):
            found.append((namer, cls))
    return found


def name_in_enum(chain: Chain, position: int, label: str) -> Edge | None:
    """Name a member of an enum class or its value, through whichever of the class's maps the chain passes."""
    cls = chain.objects[position]
    enum = safe_access.loaded_class("enum", "Enum")
    members = safe_access.class_dict(cls).get("_member_map_")
    if enum is None or not safe_access.is_subclass(cls, enum) or type(members) is not dict:
        return None
    texts = chain.lookups.once("members", members, lambda: _texts_of_members(members, _value_text(cls, enum)))
    best: Edge | None = None
    for length in range(2, _MAX_ENUM_LINKS + 1):
        beyond = chain.at(position + length)
        if beyond is None:
            break
        text = texts.get(id(beyond))
        if text is not None:
            best = Edge(text, label, length)
    return best


def _texts_of_members(members: dict[Any, Any], value_text: str) -> dict[int, str]:
    texts: dict[int, str] = {}
    for name, member in list(dict.items(members)):
        if safe_access.is_attribute_name(name):
            texts[id(member)] = f".{name}"
            value = (safe_access.instance_dict(member) or {}).get("_value_")
            if value is not None:
                texts[id(value)] = f".{name}{value_text}"
    return texts


def _value_text(cls: type, enum: type) -> str:
    is_plain = safe_access.find_in_class(cls, "value") is safe_access.class_dict(enum).get("value")
    return ".value" if is_plain else "._value_"


def _name_in_enum_member(chain: Chain, position: int, cls: type) -> Edge | None:
    namespace = safe_access.instance_dict(chain.objects[position])
    for length in (1, 2):
        beyond = chain.at(position + length)
        if namespace is not None and beyond is not None and beyond is namespace.get("_value_"):
            return Edge(_value_text(type(chain.objects[position]), cls), chain.label(position), length)
    return None


def _name_in_future(chain: Chain, position: int, cls: type) -> Edge | None:
    future, child, label = chain.objects[position], chain.at(position + 1), chain.label(position)
    for attribute, text in _FUTURE_ATTRIBUTES.items():
        if safe_access.slot(future, cls, attribute) is child:
            return Edge(text, label)
    if type(child) is types.TracebackType:  # which a task in C refers to as well
        return Edge(".exception().__traceback__", label)
    if safe_access.is_a(child, BaseException):  # how it was cancelled, which no attribute shows
        return Edge(".exception()", label)
    # Built at each reading; the first callback is kept apart from the others.
    texts = chain.lookups.once("callbacks", future, lambda: _texts_of_callbacks(future, cls))
    for length in (1, 2, 3) if texts else ():
        callback = texts.get(id(chain.at(position + length)))
        if callback is not None:
            return Edge(callback, label, length)
    return _context(child, label)


def _context(child: object, label: str) -> Edge | None:
    return Edge(" (context)", label) if type(child) is contextvars.Context else None


def _texts_of_callbacks(future: object, cls: type) -> dict[int, str]:
    callbacks = safe_access.slot(future, cls, "_callbacks")
    texts: dict[int, str] = {}
    for index, pair in enumerate(callbacks if type(callbacks) is list else ()):
        for item, value in enumerate(pair if type(pair) is tuple else ()):
            if type(value) is not tuple and value is not None:
                texts.setdefault(id(value), f"._callbacks[{index}][{item}]")
    return texts


_FUTURE_ATTRIBUTES: Final = {
    "_result": ".result()",
    "_exception": ".exception()",
    "_coro": ".get_coro()",
    "_loop": ".get_loop()",
    "_fut_waiter": "._fut_waiter",
}
"""Fields of ``_asyncio.Future`` and ``_asyncio.Task`` by how they are read (Modules/_asynciomodule.c)."""


def _name_in_queue(chain: Chain, position: int, _: type) -> Edge | None:
    """Name an item of a `queue.SimpleQueue`: a list up to Python 3.12, an array from 3.13 on."""
    own_list = sys.version_info < (3, 13) and chain.at(position + 2) is not None
    return Edge(" (item of queue)", chain.label(position), 2 if own_list else 1)


def _name_in_context_variable(chain: Chain, position: int, cls: type) -> Edge | None:
    name = safe_access.plain_text(safe_access.slot(chain.objects[position], cls, "name"))
    return Edge(" (default)", f"context variable {None if name is None else safe_access.cut_name(name)!r}")


def _name_in_token(chain: Chain, position: int, cls: type) -> Edge | None:
    child, label = chain.at(position + 1), chain.label(position)
    for name in ("old_value", "var"):
        if safe_access.slot(chain.objects[position], cls, name) is child:
            return Edge(f".{name}", label)
    return _context(child, label)


def _name_in_weak_keys(chain: Chain, position: int, _: type) -> Edge | None:
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


_NAMERS: Final[dict[tuple[str, str], Callable[[Chain, int, Any], Edge | None]]] = {
    ("_asyncio", "Task"): _name_in_future,
    ("_asyncio", "Future"): _name_in_future,
    ("_queue", "SimpleQueue"): _name_in_queue,
    ("_contextvars", "ContextVar"): _name_in_context_variable,
    ("_contextvars", "Token"): _name_in_token,
    ("enum", "Enum"): _name_in_enum_member,
    ("weakref", "WeakKeyDictionary"): _name_in_weak_keys,
}


MAX_WALKED: Final = 2_000


def reaches(starts: Iterable[object], end: object) -> bool:
    """Tell whether `MAX_WALKED` references lead from `starts` to `end`, through no class, module or its globals."""
    pending: deque[object] = deque(starts)
    met: set[int] = set()
    walked = 0
    untouchable = untouchable_modules()
    while pending and walked < MAX_WALKED:
        value = pending.popleft()
        if value is end:
            return True
        if id(value) in met or id(value) in untouchable or _reaches_everything(value):
            continue
        met.add(id(value))
        for child in get_referents(value):
            walked += 1
            if child is end:
                return True
            pending.append(child)
    return False


def _reaches_everything(value: object) -> bool:
    kind = type(value)
    if kind is types.FrameType or any(safe_access.is_subclass(kind, base) for base in (type, types.ModuleType)):
        return True
    namespace: Any = value
    return kind is dict and any(type(key) is str and key == "__builtins__" for key in dict.keys(namespace))
