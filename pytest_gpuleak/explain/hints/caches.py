"""Hints on caches: `functools.lru_cache`, `functools.cached_property`, those of torch.compile and TorchScript."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.hints.pattern import GLOBAL, Pattern
from pytest_gpuleak.explain.hints.trail import is_index

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.trail import Trail

_KEY: Final = " (cache key)"
_CLASS_NAME: Final = re.compile(r"_*[A-Z]\w*[a-z]\w*")
"""CapWords, as PEP 8 names classes; a constant has no lower case letter."""

_WEAK_KEYS: Final = "weakref.WeakKeyDictionary"
"""Label of a weak dict's entry; more follows where the value refers to its key (`explain.edges.library`)."""


compile_cache: Final = Pattern(
    "torch.compile keeps it with its compiled code, in {owner}: call `torch.compiler.reset()` in teardown "
    "(`torch._dynamo.reset()` before torch 2.1).",
    root=r"torch\._dynamo(\..*)?|(.+\.)?__compiled_fn_\d+\w*",
    kinds=GLOBAL,
)
"""What torch.compile keeps, also by globals that it adds to a user's module (torch/_dynamo/output_graph.py)."""


def weak_key(trail: Trail) -> str | None:
    """Recognise an entry of a `weakref.WeakKeyDictionary`, which stays as long as its key lives."""
    index = trail.first(lambda step: step.type.startswith(_WEAK_KEYS) and step.edge.startswith("["))
    if index is None or not trail.named:
        return None
    place = f"the WeakKeyDictionary {trail.owner(index)}"
    if trail.steps[index].type != _WEAK_KEYS:
        return (
            f"A value kept in {place} refers to its own key, so that the key and the entry never go: let it refer to "
            "the key by `weakref.ref`, or keep plain values."
        )
    return f"An entry of {place} stays as long as its key lives: let go of the key, or delete the entry in teardown."


def cached_method(trail: Trail) -> str | None:
    """Recognise a cache on a method: the first item of its keys, `self`, has attributes, and its class the function."""
    if _cache(trail, _KEY) != 0 or trail.edge(1) != "[0]" or trail.type(1) != "tuple":
        return None
    place, _, _ = trail.root.rpartition(".")
    is_class = place == trail.type(2) or _CLASS_NAME.fullmatch(place.rpartition(".")[2]) is not None
    if not trail.edge(2).startswith(".") or not is_class:
        return None
    return (
        f"The cache on the method {trail.owner(0)} keeps each `self` that it was called on: keep the cache on the "
        "instance, or call its `cache_clear()` in teardown."
    )


def cached_arguments(trail: Trail) -> str | None:
    """Recognise a cached function that was called with arrays: its keys keep the arguments."""
    index = _cache(trail, _KEY)
    if index is None:
        return None
    if index + 2 == len(trail.steps) and is_index(trail.edge(index + 1)):
        kept, remedy = "arrays that it was called with, as keys", "shape, dtype and device"
    else:
        kept, remedy = "arguments that it was called with", "plain values"
    return (
        f"The cache of {trail.owner(index)} keeps the {kept}: cache by {remedy} instead, or call its `cache_clear()` "
        "in teardown."
    )


def cached_results(trail: Trail) -> str | None:
    """Recognise a cached function that returns arrays."""
    index = _cache(trail, " (cached result)")
    if index is None:
        return None
    kept = "one more result with each run: bound it (`maxsize`), or" if trail.growing else "its results:"
    return f"The cache of {trail.owner(index)} keeps {kept} call its `cache_clear()` in teardown."


script_constant: Final = Pattern(
    "TorchScript keeps the program `{program}` with its constants until the process ends: trace or script it once, at "
    "module level, and pass tensors as arguments.",
    edge=r"(?s:\.find_function\('(?P<program>.*)'\)\.graph\..*)",
    type=r"torch\.jit\.CompilationUnit",
    kinds=(),
)
"""A tensor that became a constant when `torch.jit.trace` met it (`adapters.torch.references`)."""


def cached_property(trail: Trail) -> str | None:
    """Recognise an attribute named like the function that made its value; an assigned one looks alike, so: "if"."""
    last, origin = len(trail.steps) - 1, trail.origin
    if last < 0 or origin is None or trail.edge(last) != f".{origin.function.rpartition('.')[2]}":
        return None
    if not trail.named or not trail.is_plain_until(last + 1) or trail.piles_up_before(last):
        return None
    return (
        f"If {trail.owner(last + 1)} is a `functools.cached_property`, its value stays as long as {trail.owner(last)}: "
        "delete the attribute in teardown (`del`)."
    )


def _cache(trail: Trail, edge: str) -> int | None:
    index = trail.find(edge)
    return index if index is not None and trail.named and trail.type(index) == "functools.lru_cache" else None
