"""Hints on caches: lru_cache, cached_property, torch.compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.explain.hints import caches
from tests.support.leaks import hint_for, leak, trail

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding

pytestmark = pytest.mark.newest

KEY = (" (cache key)", "functools.lru_cache")
RESULT = (" (cached result)", "functools.lru_cache")
FIRST = ("[0]", "tuple")


@pytest.mark.parametrize(
    ("root", "owner"),
    [
        ("app.Encoder.mask", "app.Encoder"),
        ("app.Encoder.mask", "app.SubEncoder"),  # the method is inherited
        ("app.rnn.mask", "app.rnn"),  # a class whose name is no class's
    ],
)
def test_a_cached_method_keeps_each_self(root: str, owner: str) -> None:
    hint = hint_for(leak(root, KEY, FIRST, (".weight", owner), kind="cache"))
    assert hint is not None
    assert hint.startswith(f"The cache on the method `{root}` keeps each `self`")
    assert "`cache_clear()`" in hint


@pytest.mark.parametrize(
    ("root", "steps"),
    [
        ("app.encode", [KEY, FIRST, (".weight", "torch.nn.modules.linear.Linear")]),  # a function of a module's
        ("app.Encoder.mask", [KEY, ("[1]", "tuple"), (".weight", "app.Encoder")]),  # not the first argument
        ("app.Encoder.mask", [KEY, FIRST]),  # the array is the argument itself
        ("app.HELPER.encode", [KEY, FIRST, (".weight", "app.Encoder")]),  # an instance, with a cache of its own
        ("app.Encoder.mask", [RESULT]),
    ],
)
def test_what_is_not_certainly_self_is_not_called_so(root: str, steps: list[tuple[str, str]]) -> None:
    assert caches.cached_method(trail(leak(root, *steps, kind="cache"))) is None


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (leak("app.norm", KEY, FIRST, kind="cache"), "`app.norm` keeps the arrays that it was called with"),
        (leak("app.norm", KEY, ("[3]", "tuple"), kind="cache"), "`app.norm` keeps the arrays that it was called with"),
        (leak("app.norm", KEY, FIRST, (".w", "app.Net"), kind="cache"), "`app.norm` keeps the arguments"),
        (leak("app.mask", RESULT, kind="cache"), "`app.mask` keeps one more result with each run: bound it"),
        (leak("app.mask", RESULT, ("[0]", "tuple"), kind="cache", found="retained"), "`app.mask` keeps its results"),
    ],
)
def test_a_cached_function_is_cleared(finding: Finding, expected: str) -> None:
    hint = hint_for(finding)
    assert hint is not None
    assert expected in hint
    assert "`cache_clear()`" in hint


def test_a_cached_result_with_its_graph_is_to_be_detached() -> None:
    hint = hint_for(leak("app.embed", RESULT, kind="cache", nodes=3))
    assert hint is not None
    assert hint.startswith("`app.embed` keeps a result with its autograd graph")


@pytest.mark.parametrize(("edge", "label"), [KEY, RESULT])
def test_words_of_a_cache_on_another_type_are_none(edge: str, label: str) -> None:
    finding = leak("app.CACHE", (edge, "app.Cache"), FIRST)
    assert caches.cached_arguments(trail(finding)) is None
    assert caches.cached_results(trail(finding)) is None


def test_a_cached_property_is_recognised_by_the_function_that_made_its_value() -> None:
    finding = leak("app.ENCODER", (".table", "app.Encoder"), found="retained", function="table")
    hint = hint_for(finding)
    assert hint is not None
    assert hint.startswith("If `app.ENCODER.table` is a `functools.cached_property`")
    assert "stays as long as `app.ENCODER`" in hint


@pytest.mark.parametrize(
    "finding",
    [
        leak("app.ENCODER", (".table", "app.Encoder"), found="retained", function="build_table"),
        leak("app.ENCODER", (".table", "app.Encoder"), found="retained"),  # unknown who made it
        leak("app.ENCODER", (".table", "app.Encoder"), ("[0]", "list"), found="retained", function="table"),
        leak("app.ENCODERS", ("[2]", "list"), (".table", "app.Encoder"), function="table"),  # the encoders pile up
        leak("app.table", found="retained", function="table"),
        leak("frame of f: local 'e'", (".table", "app.Encoder"), kind="frame", function="table"),
    ],
)
def test_an_attribute_is_no_cached_property_for_want_of_better(finding: Finding) -> None:
    assert caches.cached_property(trail(finding)) is None


@pytest.mark.parametrize("root", ["torch._dynamo.convert_frame.output_codes", "app.nets.__compiled_fn_3_5e26870b_113e"])
def test_compiled_code_is_dropped_by_a_reset(root: str) -> None:
    hint = hint_for(leak(root, ("[0]", "list")))
    assert hint is not None
    assert "`torch.compiler.reset()`" in hint


@pytest.mark.parametrize(
    "root",
    ["torch._dynamo_extras.CACHE", "torch.nn.functional.CACHE", "app.torch._dynamo.CACHE", "app.my__compiled_fn_3"],
)
def test_other_caches_are_not_the_compilers(root: str) -> None:
    assert caches.compile_cache(trail(leak(root, ("[0]", "list")))) is None


PROGRAM = ".find_function('__torch__.app.Net.forward').graph.findAllNodes('prim::Constant')[3].t('value')"


def test_a_constant_of_a_program_that_torchscript_keeps() -> None:
    hint = hint_for(leak("torch.jit._state._python_cu", (PROGRAM, "torch.jit.CompilationUnit")))
    assert hint == (
        "TorchScript keeps the program `__torch__.app.Net.forward` with its constants until the process ends: trace or "
        "script it once, at module level, and pass tensors as arguments."
    )


def test_another_method_of_that_name_is_not_torchscripts() -> None:
    assert caches.script_constant(trail(leak("app.TOOLS", (PROGRAM, "app.Tools")))) is None
