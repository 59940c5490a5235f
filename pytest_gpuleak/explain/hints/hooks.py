"""Hints on hooks that were never removed: of modules, optimizers, tensors, and for all modules."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.hints.trail import ATTRIBUTE, code, is_index
from pytest_gpuleak.heap.hidden_references import RING_ROOT

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.trail import Trail

_HOOKS: Final = re.compile(r"\._\w*hooks|.* \((?:pre)?hooks\)")
"""Where torch keeps hooks of modules, optimizers (torch/optim/optimizer.py), tensors (torch/_tensor.py) and graphs' nodes."""

_GLOBAL_HOOKS: Final = re.compile(r"torch\.[\w.]+\._global_\w*hooks")
_HOOKS_OF_GRAPH: Final = "C++ (hooks of an autograd graph)"
"""A dict of hooks whose tensor has another one now, or is gone: no walk shows that the graph refers to it."""

_OWN: Final = (".grad", ".grad_fn", "._base", ".variable")
_TENSORS: Final = ("torch.Tensor", "torch.nn.parameter.Parameter")
_BY_HANDLE: Final = "collections.OrderedDict"
"""Dicts of hooks whose keys are the numbers of handles (torch/utils/hooks.py, RemovableHandle)."""


def hook_not_removed(trail: Trail) -> str | None:
    """Recognise a hook in one of torch's dicts of hooks, whatever follows below it."""
    if _GLOBAL_HOOKS.fullmatch(trail.root) and _is_handle(trail, 0):
        return _hint(f"for all, in {code(trail.root)},")
    for index, step in enumerate(trail.steps):
        if _HOOKS.fullmatch(step.edge) is not None and trail.named and _is_handle(trail, index + 1):
            return None if trail.piles_up_before(index) else _hint(f"on {trail.owner(index)}")
    return None


def ring_through_graph(trail: Trail) -> str | None:  # noqa: PLR0911 - a return for each hint
    """Recognise a ring through an autograd graph, one side of which C++ holds (pytorch/pytorch#7343)."""
    if trail.root == _HOOKS_OF_GRAPH:
        return (
            "A hook of a tensor keeps what it refers to for as long as the tensor's autograd graph lives, for good where that "
            "leads back to it: call `handle.remove()` when done, or let the hook refer to tensors by `weakref.ref`."
        )
    if trail.root != RING_ROOT:
        return None
    if any(step.edge == "._post_accumulate_grad_hooks" for step in trail.steps):
        return (
            "A hook of `register_post_accumulate_grad_hook()` refers to what owns its parameter, a cycle that no "
            "collector frees: call `handle.remove()` when done, or let the hook refer to its owner by `weakref.ref`."
        )
    if any("hooks" in step.edge for step in trail.steps):
        return (
            "A hook on an autograd node refers to what owns the graph, a cycle that no collector frees: call "
            "`handle.remove()` when done, or let the hook refer to its owner by `weakref.ref`."
        )
    if trail.gradient_with_graph() is not None:
        return (
            "A gradient made with `create_graph=True` leads back to its parameter, a cycle that no collector frees: "
            "set `.grad = None` when done, store `.grad.detach()`, or do without `create_graph`."
        )
    for index, step in enumerate(trail.steps):
        if ATTRIBUTE.fullmatch(step.edge) is None or step.edge in _OWN:
            continue
        if step.type.startswith("torch.autograd.function."):
            return (
                f"A custom autograd Function keeps its output in {code('ctx' + step.edge)}, a cycle that no collector "
                "frees: use `ctx.save_for_backward()`, or delete the attribute after the backward pass."
            )
        if step.type in _TENSORS and trail.edge(index + 1).startswith(".grad_fn"):
            return (
                f"The attribute {code(step.edge)} of a tensor keeps a result computed from that tensor, a cycle that no "
                "collector frees: store `.detach()` or `.item()` of it, or delete the attribute when done."
            )
    return None


def _is_handle(trail: Trail, index: int) -> bool:
    return trail.type(index) == _BY_HANDLE and is_index(trail.edge(index))


def _hint(where: str) -> str:
    return (
        f"A hook registered {where} was never removed and keeps what it refers to: keep the handle that registering it "
        "returned and call `handle.remove()` in teardown."
    )
