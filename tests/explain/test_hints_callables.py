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


OLD = (".__closure__[1].cell_contents", "closure variable 'old' of test_it.<locals>.<lambda>")
PASSED_ON = (".__closure__[1].cell_contents", "closure variable 'x' of call")
WRAPPED = (".__wrapped__", "function")
OLD_DEFAULT = (".__defaults__[0]", "default of argument 'old' of run")
MODEL = (".forward", "app.Net (torch.nn.Module)")


@pytest.mark.parametrize(
    ("finding", "name"),
    [
        (leak("app.Head.forward", OLD, CLOSURE, kind="class"), "app.Head.forward"),
        (leak("app.attend", OLD, OLD, OLD, CLOSURE, ("[0]", "torch.nn.Sequential (torch.nn.Module)")), "app.attend"),
        (leak("app.attend", WRAPPED, PASSED_ON), "app.attend"),
        (leak("app.run", OLD_DEFAULT, DEFAULT), None),  # another function's
        (leak("app.run", OLD_DEFAULT, (".__defaults__[1]", "default of argument 'x' of run")), "app.run"),
        (
            leak("app.MODEL", MODEL, (".__func__", "method app.f"), OLD, (".__func__", "method app.f"), CLOSURE),
            "app.MODEL.forward",
        ),
        (leak("app.OPS", ("['attend']", "dict"), OLD, CLOSURE), "app.OPS['attend']"),
        (leak("app.attend", OLD, CLOSURE, found="retained"), None),
        (leak("app.attend", CLOSURE), None),
        (leak("app.attend", OLD, MEMO), None),  # decorated by another decorator
        (leak("app.table", OLD, CLOSURE, ("[6]", "dict")), None),  # decorated twice, with a cache
        (leak("app.CALLBACKS", ("[0]", "list"), OLD, CLOSURE), None),
        (leak("fixture 'app'", MODEL, OLD, CLOSURE, kind="fixture"), None),
    ],
)
def test_functions_that_each_keep_the_one_before_are_a_function_wrapped_again(
    finding: Finding, name: str | None
) -> None:
    told = callables.wrapped_again(trail(finding))
    assert told == hint_for(finding) if name else told is None
    assert name is None or (told or "").startswith(f"Each run wraps the function `{name}` once more")


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
