"""Hints on JAX: leaked tracers, static arguments, functions jitted in each run, pullbacks that are kept."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.hints.pattern import GLOBAL, Pattern
from pytest_gpuleak.explain.hints.trail import code

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.trail import Trail

_OWN: Final = re.compile(r"jax(lib)?\..*")
_PULLBACK: Final = "jax._src.api.VJP"
_PARTIAL: Final = "jax.tree_util.Partial"


def leaked_tracer(trail: Trail) -> str | None:
    """Recognise a tracer that was stored while a function was traced."""
    if trail.finding.kind != "tracer":
        return None
    origin = next((array.created for array in trail.finding.tensors if array.created is not None), None)
    traced = "the traced function" if origin is None else code(origin.function)
    if _OWN.fullmatch(trail.root):
        return (
            f"A cache of JAX's keeps what it traced in {traced}: trace a function once, at module level, or call "
            "`jax.clear_caches()` in teardown."
        )
    place = code(trail.root) if trail.named and trail.kind != "fixture" else "something"
    return (
        f"{place} was given a value inside {traced}, where it is only a tracer: store what the function returns; "
        "`jax.checking_leaks()` raises where one escapes."
    )


kept_by_caches: Final = Pattern(
    "JAX's caches keep static arguments (`self` of a jitted method) with their arrays: let them compare by value "
    "(`__eq__`, `__hash__`), pass arrays as arguments, or call `jax.clear_caches()` in teardown.",
    root=_OWN.pattern,
    kinds=GLOBAL,
)
"""What JAX's own caches keep: static arguments and what is reachable from them."""


jitted_closure: Final = Pattern(
    "{owner} is a jitted function that keeps `{variable}` of its closure, and its program: pass arrays as arguments, "
    "and jit a function once.",
    type=r"(?s:.*PjitFunction)",  # its module differs between jaxlib's versions
    after=r"(?s:closure variable '(?P<variable>.*)' of .*)",
)
"""A jitted function that is kept with the arrays it closes over."""


def kept_pullback(trail: Trail) -> str | None:
    """Recognise a function that `jax.vjp` returned (up to JAX 0.6 a `Partial` of another): it keeps what was saved."""
    for index in range(len(trail.steps)):
        kind = trail.type(index)
        if trail.named and (kind == _PULLBACK or kind == _PARTIAL == trail.type(index + 2)):
            return (
                f"{trail.owner(index)} is a function of `jax.vjp`, which keeps what the forward pass saved: call it "
                "and let it go within the test, and keep its results alone."
            )
    return None
