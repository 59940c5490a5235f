"""Hints on what TensorFlow and Keras keep of the functions that they have traced."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.hints.pattern import Pattern

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
