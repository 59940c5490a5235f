"""Hints on TensorFlow, Keras and JAX: what they keep of traced functions, leaked tracers, static arguments, pullbacks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.hints.pattern import GLOBAL, Pattern
from pytest_gpuleak.explain.hints.trail import code

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.trail import Trail


_FUNCTION: Final = "tensorflow.python.eager.polymorphic_function.polymorphic_function.Function"
_CAPTURES: Final = re.compile(r"\._captured_inputs|\._by_(val|ref)_(external|internal)")


gradient_registry: Final = Pattern(
    "TensorFlow's gradient registry keeps each model that `fit` traces, for good (tensorflow issue 97697): fit one "
    "model in a wider fixture, compile with `run_eagerly=True`, or use `allow_gpu_leak`.",
    root=r"(?s:tensorflow\.python\.framework\.ops\.gradient_registry.*)",
    kinds=(),
)
"""The registry of custom gradients (tensorflow/python/framework/registry.py), which keeps graphs traced by `fit`."""


def captured_by_function(trail: Trail) -> str | None:
    """Recognise what a `tf.function` that outlives the test has captured in its traces."""
    captured = trail.match(_CAPTURES)
    if captured is None or not trail.named:
        return None
    function = next((position for position in range(captured[0]) if trail.type(position) == _FUNCTION), None)
    if function is None or trail.piles_up_before(function):
        return None
    return (
        f"The `tf.function` {trail.owner(function)} keeps what it captured when it was traced: pass it as an argument, or "
        "make the function for each test."
    )


keras_state: Final = Pattern(
    "Keras keeps it in its global state: call `tf.keras.backend.clear_session()` in teardown, or in the hook "
    "`pytest_gpuleak_settle` of a conftest.py.",
    root=r"(?s:keras\.src\.backend\.(common\.global_state\.|PER_GRAPH|_GRAPH).*)",
    kinds=(),
)
"""What Keras keeps for its session."""


kept_by_tape: Final = Pattern(
    "The `tf.GradientTape` kept in {container} keeps all that it has recorded: store the gradients, and let go of the "
    "tape (`del tape`) where it is `persistent`.",
    edge=r" \(recorded\)",
)
"""What a gradient tape has recorded (`adapters.tensorflow.tapes`), which lives as long as the tape."""


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
