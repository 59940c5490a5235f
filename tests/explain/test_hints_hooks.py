"""Hints on hooks that were registered and never removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.explain.hints import hooks
from pytest_gpuleak.heap.hidden_references import RING_ROOT
from tests.support.leaks import CLOSURE, hint_for, leak, trail

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding

pytestmark = pytest.mark.newest

LINEAR = "torch.nn.modules.linear.Linear"
HANDLE = ("[3]", "collections.OrderedDict")
FORWARD = ("._forward_hooks", LINEAR)
IN_SEQUENTIAL = ("[0]", "torch.nn.modules.container.Sequential (torch.nn.Module)")


@pytest.mark.parametrize(
    ("finding", "owner"),
    [
        (leak("app.MODEL", IN_SEQUENTIAL, FORWARD, HANDLE, CLOSURE), "on `app.MODEL[0]`"),
        (leak("app.NET", ("._backward_hooks", "app.Net"), HANDLE, (".__self__", "method")), "on `app.NET`"),
        (leak("app.OPT", ("._optimizer_step_post_hooks", "torch.optim.sgd.SGD"), HANDLE, CLOSURE), "on `app.OPT`"),
        (leak("app.W", ("._backward_hooks", "torch.Tensor"), HANDLE, CLOSURE), "on `app.W`"),
        (leak("app.MODELS", ("['bert']", "dict"), FORWARD, HANDLE, CLOSURE), "on `app.MODELS['bert']`"),
        (leak("app.MODELS", ("[0]", "list"), FORWARD, HANDLE, CLOSURE, found="retained"), "on `app.MODELS[0]`"),
        (leak("fixture 'model'", FORWARD, HANDLE, CLOSURE, kind="fixture"), "on fixture 'model'"),
        (leak("torch.nn.modules.module._global_forward_hooks", HANDLE, CLOSURE), "for all, in `torch.nn.modules"),
    ],
)
def test_a_hook_is_removed_by_its_handle(finding: Finding, owner: str) -> None:
    hint = hint_for(finding)
    assert hint is not None
    assert hint.startswith(f"A hook registered {owner}")
    assert "`handle.remove()`" in hint


def test_a_model_that_is_itself_added_each_run_is_the_culprit_and_not_its_hooks() -> None:
    finding = leak("app.MODELS", ("[3]", "list"), FORWARD, HANDLE, CLOSURE)
    assert hooks.hook_not_removed(trail(finding)) is None


@pytest.mark.parametrize(
    "steps",
    [
        [("._forward_hooks", "app.Trainer"), ("[0]", "list"), CLOSURE],  # no handles: a list of the user's own
        [("._forward_hooks", "app.Trainer"), ("['a']", "collections.OrderedDict"), CLOSURE],
        [(".layers", "app.Net"), HANDLE],
        [(" (inside app.Pool)", "app.Pool"), HANDLE],
        [FORWARD],
    ],
)
def test_what_has_no_handles_is_no_hook_of_torchs(steps: list[tuple[str, str]]) -> None:
    assert hooks.hook_not_removed(trail(leak("app.X", *steps))) is None


def test_a_hook_on_something_that_nobody_can_name_gets_no_hint() -> None:
    finding = leak("C++", FORWARD, HANDLE, CLOSURE, kind="native", text="C++ -> torch.nn.Linear")
    assert hint_for(finding) is None


def test_a_ring_through_a_hook_on_a_graph_is_told_from_other_rings() -> None:
    edges = ((".loss", "app.Trainer"), (".grad_fn (hooks)[3]", "torch.Tensor"), (".args[0]", "functools.partial"))
    hint = hint_for(leak(RING_ROOT, *edges, kind="native"))
    assert hint is not None
    assert "`handle.remove()`" in hint
    assert "`weakref.ref`" in hint
    assert hint_for(leak(RING_ROOT, (".grad_fn._saved_self", "torch.Tensor"), kind="native")) is None
    assert hooks.ring_through_graph(trail(leak("C++", *edges, kind="native"))) is None


def test_a_hook_that_a_graph_alone_keeps_is_told() -> None:
    hint = hint_for(leak("C++ (hooks of an autograd graph)", HANDLE, CLOSURE, kind="native"))
    assert hint is not None
    assert "`handle.remove()`" in hint


GRADIENT = ".grad.grad_fn.next_functions[0][0].variable"


@pytest.mark.parametrize(
    ("steps", "names"),
    [
        ([(GRADIENT, "torch.Tensor")], ["`create_graph=True`", "`.grad = None`"]),
        ([(".grad", "torch.Tensor"), (".grad_fn._saved_self", "torch.Tensor")], ["`.grad = None`"]),
        ([(".loss", "torch.Tensor"), (".grad_fn._saved_self", "torch.Tensor")], ["`.loss`", "`.detach()`"]),
        (
            [(".grad_fn", "torch.Tensor"), (".kept", "torch.autograd.function.KeepBackward")],
            ["`ctx.kept`", "`ctx.save_for_backward()`"],
        ),
        (
            [("._backward_hooks", "torch.Tensor"), HANDLE, CLOSURE, (".grad_fn._saved_self", "torch.Tensor")],
            ["`handle.remove()`"],
        ),
    ],
)
def test_what_closes_a_ring_is_told(steps: list[tuple[str, str]], names: list[str]) -> None:
    hint = hint_for(leak(RING_ROOT, *steps, kind="native"))
    assert hint is not None
    assert [name for name in names if name not in hint] == []


def test_a_gradient_with_a_graph_on_a_parameter_that_can_be_named() -> None:
    hint = hint_for(leak("app.MODEL", (".weight", "app.Net"), (GRADIENT, "torch.nn.parameter.Parameter")))
    assert hint is not None
    assert hint.startswith("The gradient of `app.MODEL.weight` was made with `create_graph=True`")
