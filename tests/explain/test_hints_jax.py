"""Hints on JAX: leaked tracers, static arguments, functions jitted in each run, pullbacks that are kept."""

from __future__ import annotations

import pytest

from pytest_gpuleak.explain.hints import frameworks
from pytest_gpuleak.explain.hints.order import MAX_HINT_LENGTH
from tests.support.leaks import hint_for, leak, trail

pytestmark = pytest.mark.newest

CACHE = "jax._src.pjit._process_in_axis_resources"
CLOSED = (".__closure__[0].cell_contents", "closure variable 'weight' of make.<locals>.<lambda>")
PARTIAL = "jax.tree_util.Partial"


def test_a_tracer_names_its_function_and_the_place() -> None:
    hint = hint_for(leak("app.SEEN", ("[0]", "list"), found="tracer", function="forward"))
    assert hint is not None
    assert hint.startswith("`app.SEEN` was given a value inside `forward`, where it is only a tracer")
    assert "`jax.checking_leaks()`" in hint


def test_a_tracer_without_a_line_or_place() -> None:
    hint = hint_for(leak("C++", kind="native", found="tracer"))
    assert hint is not None
    assert hint.startswith("something was given a value inside the traced function")


def test_a_tracer_in_a_cache_of_jax_was_stored_by_no_user() -> None:
    hint = hint_for(leak(CACHE, ("[0]", "list"), found="tracer", function="forward"))
    assert hint is not None
    assert hint.startswith("A cache of JAX's keeps what it traced in `forward`")
    assert "`jax.clear_caches()`" in hint


@pytest.mark.parametrize("kind", ["module", "cache", "class"])
def test_jaxs_own_caches_are_to_be_cleared(kind: str) -> None:
    hint = hint_for(leak(CACHE, (" (cache key)", "functools.lru_cache"), kind=kind))  # type: ignore[arg-type]
    assert hint is not None
    assert "`jax.clear_caches()`" in hint


@pytest.mark.parametrize("root", ["jaxtyping.CACHE", "app.jax", "jax"])
def test_a_users_module_is_no_cache_of_jax(root: str) -> None:
    assert frameworks.kept_by_caches(trail(leak(root, ("[0]", "list")))) is None


@pytest.mark.parametrize("label", ["jaxlib._jax.PjitFunction", "jaxlib.xla_extension.PjitFunction"])
def test_a_jitted_closure_is_to_take_arguments(label: str) -> None:
    hint = hint_for(leak("app.STEPS", ("[0]", "list"), (".__wrapped__", label), CLOSED))
    assert hint is not None
    assert hint.startswith("`app.STEPS[0]` is a jitted function that keeps `weight` of its closure")


def test_a_plain_closure_is_no_jitted_one() -> None:
    assert frameworks.jitted_closure(trail(leak("app.STEPS", ("[0]", "list"), CLOSED))) is None


@pytest.mark.parametrize(
    "steps",
    [
        [("[0]", "list"), (".args_res[0]", "jax._src.api.VJP")],
        [("[0]", "list"), (".args", PARTIAL), ("[0]", "tuple"), (".args", PARTIAL), ("[0]", "tuple")],
    ],
)
def test_a_pullback_is_to_be_let_go(steps: list[tuple[str, str]]) -> None:
    hint = hint_for(leak("app.PULLBACKS", *steps))
    assert hint is not None
    assert hint.startswith("`app.PULLBACKS[0]` is a function of `jax.vjp`")


def test_a_users_partial_is_no_pullback() -> None:
    assert (
        frameworks.kept_pullback(trail(leak("app.CALLS", ("[0]", "list"), (".args", PARTIAL), ("[0]", "tuple"))))
        is None
    )


def test_hints_stay_short_whatever_the_names() -> None:
    name = "app." + "x" * 300
    closed = (CLOSED[0], f"closure variable '{'w' * 300}' of make")
    for found in (
        leak(name, ("[0]", "list"), found="tracer", function="f" * 300),
        leak(f"jax._src.{name}"),
        leak(f"jax._src.{name}", found="tracer", function="f" * 300),
        leak(name, ("[0]", "list"), (".__wrapped__", "jaxlib._jax.PjitFunction"), closed),
        leak(name, ("[0]", "list"), (".args_res[0]", "jax._src.api.VJP")),
    ):
        hint = hint_for(found)
        assert hint is not None
        assert len(hint) <= MAX_HINT_LENGTH, hint
