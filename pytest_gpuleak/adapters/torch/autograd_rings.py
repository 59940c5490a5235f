"""Tell what autograd graphs keep below tensors, and whether a ring of references may lead through one."""

from __future__ import annotations

from gc import get_referents
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.torch.autograd_walk import GraphWalk
from pytest_gpuleak.adapters.torch.node_hooks import NodeHooks
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess

LEAF_HOOKS: Final = "_post_accumulate_grad_hooks"

_RING_STEPS: Final = 10_000_000
"""Steps (`heap.budget`) of the walk that tells whether a graph may close a ring: 100,000 nodes. Of more, it may."""


def _walk_from(access: TorchAccess, tensors: Sequence[Any]) -> GraphWalk:
    """Return a walk over the graphs of these tensors, of `_RING_STEPS` at most."""
    walk = GraphWalk(access, Budget(_RING_STEPS))
    for tensor in tensors:
        node = None if access.read(tensor, "is_leaf") else access.grad_fn(tensor)
        if node is not None:
            walk.start(node, tensor, "")
    return walk


def _kept_by(access: TorchAccess, node: Any) -> list[Any]:
    """Return what a node of a graph keeps: its leaf, if it has one, and what it has saved."""
    values = (access.variable(node), *(saved.value for saved in access.saved(node)))
    return [value for value in values if value is not None]


def kept_below(access: TorchAccess, tensors: Sequence[Any]) -> Iterator[object]:
    """Yield what autograd graphs, gradients and views keep for these tensors, and these."""
    kept = list(tensors)
    for node in _walk_from(access, tensors).walk():
        kept += _kept_by(access, node)
    for value in filter(access.is_tensor, kept):
        yield value
        if access.read(value, "_is_view"):
            yield access.read(value, "_base")
        yield from (part.value for part in access.inside(value))
        if access.may_have_gradient(value):
            yield access.read(value, "grad")


def _has_graph(access: TorchAccess, value: Any) -> bool:
    if not access.is_tensor(value) or not access.read(value, "requires_grad"):
        return False
    if not access.read(value, "is_leaf") or safe_access.instance_dict(value):
        return True
    gradient = access.read(value, "grad")
    return access.is_tensor(gradient) and bool(access.read(gradient, "requires_grad"))


def may_close(access: TorchAccess, arrays: Sequence[object]) -> bool:
    """Tell whether a cycle may lead through the autograd graph of one of the arrays (see `_leads_back`)."""
    tensors = [array for array in arrays if _has_graph(access, array)]
    walk, hooks = _walk_from(access, tensors), NodeHooks(access)
    if any(_leads_back(access, tensor) for tensor in tensors):
        return True
    with hooks.reading(True):
        for node in walk.walk():
            if access.is_custom(node) or hooks.of(node):
                return True
            if any(_leads_back(access, value) for value in _kept_by(access, node)):
                return True
    return walk.cut


def _leads_back(access: TorchAccess, value: Any) -> bool:
    """Tell whether a value that a graph keeps may lead to what is younger, and so back to the graph.

    A node and its tensors refer to what was there before. What comes later is a gradient with a graph, a write in place,
    a hook, or an attribute: of the tensor, of its gradient, or of the base that it is a view of.
    """
    if not access.is_tensor(value) or _has_attributes(access, value):
        return True  # what a pack hook made is any object
    if access.read(value, "_backward_hooks") is not None or access.read(value, LEAF_HOOKS) is not None:
        return True
    base = access.read(value, "_base") if access.read(value, "_is_view") else None
    if base is not None:
        if _leads_back(access, base):
            return True
    elif not access.read(value, "is_leaf") and access.read(value, "_version"):
        return True
    gradient = access.read(value, "grad") if access.may_have_gradient(value) else None
    return gradient is not None and bool(access.read(gradient, "requires_grad") or _leads_back(access, gradient))


def _has_attributes(access: TorchAccess, tensor: Any) -> bool:
    """Tell whether a tensor's Python object refers to more than its class and its graph: by its dict, or by slots."""
    plain = (one for one in get_referents(tensor) if not (safe_access.is_a(one, type) or access.is_node(one)))
    return any(type(one) is not dict or one for one in plain)  # a read has made an empty one
