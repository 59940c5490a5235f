"""Hints on functions and methods that are kept, with what they refer to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.explain.hints import callables
from tests.support.leaks import CLOSURE, hint_for, leak, trail

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding

pytestmark = pytest.mark.newest

DEFAULT = (".__defaults__[0]", "default of argument 'acc' of collect")
MEMO = (".__closure__[1].cell_contents", "closure variable 'store' of memo.<locals>.wrapper")


@pytest.mark.parametrize(
    ("finding", "start", "remedy"),
    [
        (leak("app.collect", DEFAULT, ("[0]", "list")), "A default argument of `app.collect`", "`None`"),
        (
            leak("app.collect", (".__kwdefaults__['acc']", "default of argument 'acc' of collect"), ("['x']", "dict")),
            "A default argument of `app.collect`",
            "`None`",
        ),
        (leak("app.table", MEMO, ("[6]", "dict")), "`app.table` keeps it in `store`", "cleared"),
        (leak("app.CALLBACKS", ("[0]", "list"), CLOSURE), "A function kept in `app.CALLBACKS` closes over `x`", "take"),
        (
            leak("app.TRAINER", (".on_end", "app.Trainer"), (" (item of set)", "set"), CLOSURE, ("[0]", "list")),
            "A function kept in `app.TRAINER.on_end` closes over `x`",
            "take the function out",
        ),
        (
            leak("app.CALLBACKS", ("[0]", "list"), (".__self__", "method app.Net.step"), (".w", "app.Net")),
            "A bound method kept in `app.CALLBACKS`",
            "`weakref.WeakMethod`",
        ),
        (
            leak("app.CALLBACKS", ("['end']", "dict"), (".args", "functools.partial"), ("[0]", "tuple")),
            "A `functools.partial` kept in `app.CALLBACKS`",
            "take it out",
        ),
    ],
)
def test_a_callable_is_named_by_where_it_is_kept(finding: Finding, start: str, remedy: str) -> None:
    hint = hint_for(finding)
    assert hint is not None
    assert hint.startswith(start)
    assert remedy in hint


def test_an_array_that_is_itself_a_default_is_no_mutable_default() -> None:
    assert callables.mutable_default(trail(leak("app.scale", DEFAULT, found="retained"))) is None


def test_the_default_of_a_function_made_anew_each_run_is_not_the_culprit() -> None:
    finding = leak("app.FUNCTIONS", ("[4]", "list"), DEFAULT, ("[0]", "list"))
    assert callables.mutable_default(trail(finding)) is None


@pytest.mark.parametrize(
    "finding",
    [
        leak("app.scale", CLOSURE, found="retained"),  # the variable is the array, no container
        leak("app.CALLBACKS", ("[0]", "list"), MEMO, ("[6]", "dict")),
        leak("thread 'w'", MEMO, ("[6]", "dict"), kind="thread"),
    ],
)
def test_a_closure_without_a_container_or_a_name_is_no_cache(finding: Finding) -> None:
    assert callables.memo_in_closure(trail(finding)) is None


@pytest.mark.parametrize(
    "finding",
    [
        leak("app.table", MEMO, ("[6]", "dict")),  # defined there: taking it out is no remedy
        leak("app.X", (".__dict__['f']", "app.X"), CLOSURE),
        leak("app.X", (".__closure__[0]", "function f"), (".cell_contents", "cell")),
        leak("C++", ("[0]", "list"), CLOSURE, kind="native", text="C++ -> list[0]"),
    ],
)
def test_a_function_that_nobody_stored_is_not_to_be_taken_out(finding: Finding) -> None:
    assert callables.closure(trail(finding)) is None


@pytest.mark.parametrize(
    "steps",
    [
        [("[0]", "list"), (".__self__", "builtin_function_or_method"), (".w", "app.Net")],
        [(".__self__", "method"), (".w", "app.Net")],  # the root itself is the method
        [("[0]", "list"), (".args", "app.Job"), ("[0]", "tuple")],
    ],
)
def test_other_callables_are_not_taken_for_methods_or_partials(steps: list[tuple[str, str]]) -> None:
    finding = leak("app.X", *steps)
    assert callables.bound_method(trail(finding)) is None
    assert callables.partial(trail(finding)) is None


def test_an_operator_that_torch_was_given_is_told_by_what_its_own_function_closes_over() -> None:
    inner = (
        ".__closure__[0].cell_contents",
        "closure variable 'kernel' of FakeImplHolder.register.<locals>.deregister",
    )
    own = (".__closure__[1].cell_contents", "closure variable 'batch' of test_op.<locals>.double")
    root = "torch._library.custom_ops.OPDEF_TO_LIB"
    hint = hint_for(
        leak(root, ("['mine::double']", "dict"), ("._on_destroy", "torch._library.utils.Handle"), inner, own)
    )
    assert hint is not None
    assert hint.startswith("An operator that `torch.library` was given stays until Python ends")
    assert "closes over `batch`" in hint
