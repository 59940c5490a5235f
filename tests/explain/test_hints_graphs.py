"""Hints on what TensorFlow and Keras keep of the functions that they have traced."""

from __future__ import annotations

import pytest

from tests.support.leaks import CLOSURE, hint_for, leak

pytestmark = pytest.mark.newest

FUNCTION = "tensorflow.python.eager.polymorphic_function.polymorphic_function.Function"
CONCRETE = "tensorflow.python.eager.polymorphic_function.concrete_function.ConcreteFunction"
TRACED = ("._concrete_variable_creation_fn", FUNCTION)
CAPTURED = ("._captured_inputs", CONCRETE)
TAPE = (" (recorded)", "tensorflow.python.eager.backprop.GradientTape")


def test_what_fit_leaves_in_the_registry() -> None:
    found = leak(
        "tensorflow.python.framework.ops.gradient_registry",
        ("._registry", "tensorflow.python.framework.registry.Registry"),
        ("['CustomGradient-12']", "dict"),
        ("['type']", "dict"),
        CLOSURE,
    )
    hint = hint_for(found)
    assert hint is not None
    assert "tensorflow issue 97697" in hint
    assert "`allow_gpu_leak`" in hint


@pytest.mark.parametrize(
    ("steps", "function"),
    [
        ((TRACED, CAPTURED, ("[0]", "list")), "`app.step`"),
        (((".step", "app.Model"), TRACED, CAPTURED, ("[0]", "list")), "`app.step.step`"),
    ],
)
def test_what_a_function_has_captured(steps: tuple[tuple[str, str], ...], function: str) -> None:
    hint = hint_for(leak("app.step", *steps, found="retained"))
    assert hint is not None
    assert hint.startswith(f"The `tf.function` {function} keeps what it captured")


def test_functions_that_pile_up_are_named_by_their_list() -> None:
    hint = hint_for(leak("app.STEPS", ("[0]", "list"), TRACED, CAPTURED, ("[0]", "list")))
    assert hint is not None
    assert hint.startswith("Each run adds to `app.STEPS`")


def test_captures_of_something_else_are_no_functions() -> None:
    hint = hint_for(leak("app.BOX", ("._captured_inputs", "app.Box"), ("[0]", "list"), found="retained"))
    assert hint is not None
    assert "tf.function" not in hint


def test_what_keras_keeps_for_its_session() -> None:
    root = "keras.src.backend.common.global_state.GLOBAL_STATE_TRACKER"
    hint = hint_for(leak(root, (".global_seed_generator", "_thread._local"), found="retained"))
    assert hint is not None
    assert "clear_session()" in hint


@pytest.mark.parametrize(
    ("steps", "place"),
    [((("[0]", "list"), TAPE), "`app.TAPES`"), (((".tape", "app.Trainer"), TAPE), "`app.TAPES.tape`")],
)
def test_what_a_tape_has_recorded(steps: tuple[tuple[str, str], ...], place: str) -> None:
    hint = hint_for(leak("app.TAPES", *steps))
    assert hint is not None
    assert hint.startswith(f"The `tf.GradientTape` kept in {place} keeps all that it has recorded")
