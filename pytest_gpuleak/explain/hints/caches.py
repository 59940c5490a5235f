"""Hints on caches: `functools.lru_cache` on methods and functions, `functools.cached_property`, torch.compile's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.hints.trail import is_index

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.trail import Trail

_LRU: Final = "functools.lru_cache"
_KEY: Final = " (cache key)"
_RESULT: Final = " (cached result)"
_CLASS_NAME: Final = re.compile(r"_*[A-Z]\w*[a-z]\w*")
"""CapWords, as PEP 8 names classes; a constant has no lower case letter."""

_WEAK_KEYS: Final = "weakref.WeakKeyDictionary"
"""Label of a weak dict's entry; more follows where the value refers to its key (`explain.edges.weak`)."""

_COMPILER: Final = re.compile(r"torch\._dynamo(\..*)?|(.+\.)?__compiled_fn_\d+\w*")
"""The compiler's modules, and the globals that it adds to a user's module (torch/_dynamo/output_graph.py)."""


def compile_cache(trail: Trail) -> str | None:
    """Recognise what torch.compile keeps for compiled code."""
    if trail.kind not in ("module", "class", "cache") or not _COMPILER.fullmatch(trail.root):
        return None
    return (
        f"torch.compile keeps it with its compiled code, in {trail.owner(0)}: call `torch.compiler.reset()` in teardown "
        "(`torch._dynamo.reset()` before torch 2.1)."
    )


def weak_key(trail: Trail) -> str | None:
    """Recognise an entry of a `weakref.WeakKeyDictionary`, which stays as long as its key lives."""
    for index, step in enumerate(trail.steps):
        if not step.type.startswith(_WEAK_KEYS) or not step.edge.startswith("[") or not trail.named:
            continue
        if step.type != _WEAK_KEYS:
            return (
                f"A value kept in the WeakKeyDictionary {trail.owner(index)} refers to its own key, so that the key and "
                "the entry never go: let it refer to the key by `weakref.ref`, or keep plain values."
            )
        return (
            f"An entry of the WeakKeyDictionary {trail.owner(index)} stays as long as its key lives: let go of the key, "
            "or delete the entry in teardown."
        )
    return None


def cached_method(trail: Trail) -> str | None:
    """Recognise a cache on a method: `self` is part of each key, and stays as long as the cache.

    A key's first item counts as `self` if it has attributes, and its class, or a class by the name, has the function.
    """
    index = _cache(trail, _KEY)
    if index is None or trail.edge(index + 1) != "[0]" or trail.type(index + 1) != "tuple":
        return None
    place, _, _ = trail.root.rpartition(".")
    is_class = place == trail.type(index + 2) or _CLASS_NAME.fullmatch(place.rpartition(".")[2]) is not None
    if index != 0 or not trail.edge(index + 2).startswith(".") or not is_class:
        return None
    return (
        f"The cache on the method {trail.owner(index)} keeps each `self` that it was called on: keep the cache on the "
        "instance, or call its `cache_clear()` in teardown."
    )


def cached_arguments(trail: Trail) -> str | None:
    """Recognise a cached function that was called with arrays: its keys keep the arguments."""
    index = _cache(trail, _KEY)
    if index is None:
        return None
    function = trail.owner(index)
    if index + 2 == len(trail.steps) and is_index(trail.edge(index + 1)):
        return (
            f"The cache of {function} keeps the arrays that it was called with, as keys: cache by shape, dtype and "
            "device instead, or call its `cache_clear()` in teardown."
        )
    return (
        f"The cache of {function} keeps the arguments that it was called with: cache by plain values instead, or call "
        "its `cache_clear()` in teardown."
    )


def cached_results(trail: Trail) -> str | None:
    """Recognise a cached function that returns arrays."""
    index = _cache(trail, _RESULT)
    if index is None:
        return None
    if trail.growing:
        return (
            f"The cache of {trail.owner(index)} keeps one more result with each run: bound it (`maxsize`), or "
            "call its `cache_clear()` in teardown."
        )
    return f"The cache of {trail.owner(index)} keeps its results: call its `cache_clear()` in teardown."


def cached_property(trail: Trail) -> str | None:
    """Recognise an attribute named like the function that made its value, as `functools.cached_property` does.

    An attribute that was assigned from a function of the same name looks alike, so the hint says "if".
    """
    last = len(trail.steps) - 1
    origin = trail.finding.tensors[0].created if trail.finding.tensors else None
    if last < 0 or origin is None or trail.edge(last) != f".{origin.function.rpartition('.')[2]}":
        return None
    if not trail.named or not trail.is_plain_until(last + 1) or trail.piles_up_before(last):
        return None
    owner, attribute = trail.owner(last), trail.owner(last + 1)
    return (
        f"If {attribute} is a `functools.cached_property`, its value stays as long as {owner}: delete the attribute in "
        "teardown (`del`)."
    )


def _cache(trail: Trail, edge: str) -> int | None:
    index = trail.find(edge)
    return index if index is not None and trail.named and trail.type(index) == _LRU else None
