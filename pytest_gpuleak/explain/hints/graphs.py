"""Hints on what TensorFlow and Keras keep of the functions that they have traced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.trail import Trail

_REGISTRY: Final = "tensorflow.python.framework.ops.gradient_registry"
"""Gradient functions by name (tensorflow/python/framework/registry.py): none is ever taken out."""

_FUNCTION: Final = "tensorflow.python.eager.polymorphic_function.polymorphic_function.Function"
_CAPTURES: Final = (
    "._captured_inputs",
    "._by_val_external",
    "._by_ref_external",
    "._by_val_internal",
    "._by_ref_internal",
)
_KERAS_STATE: Final = (
    "keras.src.backend.common.global_state.",
    "keras.src.backend.PER_GRAPH",
    "keras.src.backend._GRAPH",
)
_RECORDED: Final = " (recorded)"
"""Reference from a tape to what it has recorded (`adapters.tensorflow.tapes`)."""


def gradient_registry(trail: Trail) -> str | None:
    """Recognise the registry that keeps each custom gradient, and with it the graph that Keras's `fit` traced."""
    if not trail.root.startswith(_REGISTRY):
        return None
    return (
        "TensorFlow's gradient registry keeps each model that `fit` traces, for good (tensorflow issue 97697): fit one "
        "model in a wider fixture, compile with `run_eagerly=True`, or use `allow_gpu_leak`."
    )


def captured_by_function(trail: Trail) -> str | None:
    """Recognise what a `tf.function` that outlives the test has captured in its traces."""
    index = trail.find(*_CAPTURES)
    if index is None or not trail.named:
        return None
    function = next((position for position in range(index) if trail.type(position) == _FUNCTION), None)
    if function is None or trail.piles_up_before(function):
        return None
    return (
        f"The `tf.function` {trail.owner(function)} keeps what it captured when it was traced: pass it as an argument, or "
        "make the function for each test."
    )


def keras_state(trail: Trail) -> str | None:
    """Recognise what Keras keeps for its session."""
    if not trail.root.startswith(_KERAS_STATE):
        return None
    return (
        "Keras keeps it in its global state: call `tf.keras.backend.clear_session()` in teardown, or in the hook "
        "`pytest_gpuleak_settle` of a conftest.py."
    )


def kept_by_tape(trail: Trail) -> str | None:
    """Recognise what a gradient tape has recorded, which lives as long as the tape."""
    index = trail.find(_RECORDED)
    if index is None or not trail.named:
        return None
    return (
        f"The `tf.GradientTape` kept in {trail.container_of(index)} keeps all that it has recorded: store the gradients, "
        "and let go of the tape (`del tape`) where it is `persistent`."
    )
