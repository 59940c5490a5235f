"""Measure what the autograd graph of leaked tensors retains, as after ``history.append(loss)``, and reveal unread gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.arrays import select_arrays
from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess
from pytest_gpuleak.adapters.torch.autograd_walk import MAX_NODES, GraphWalk
from pytest_gpuleak.adapters.torch.backward_pass import no_backward_running
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.collector import PausedCollector, get_objects
from pytest_gpuleak.model.findings import NOT_READ, Autograd

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_STEPS_A_TENSOR: Final = 32
"""Cost of reading a tensor, in steps of `Budget.worked`."""


def retained_by_graph(tensors: Sequence[Any], budget: Budget, *, max_nodes: int = MAX_NODES) -> Autograd | None:
    """Return how much the autograd graph behind `tensors` keeps alive beyond them; None without a graph.

    Counts nodes, and saved tensors with own storages, each once, but no leaves, which live with their model. It is `cut`,
    a lower bound, where the graph is larger than the budget or deeper than is safe to read, or a backward pass may run.
    """
    access = TorchAccess.of_loaded()
    if access is None:
        return None
    with access.quiet(), PausedCollector():
        tensors = [tensor for tensor in tensors if access.is_tensor(tensor)]
        if not any(_has_graph(access, tensor) for tensor in tensors):
            return None
        if budget.spent:
            return NOT_READ
        with no_backward_running() as resting:
            return _count(access, tensors, budget, max_nodes) if resting else NOT_READ


def _has_graph(access: TorchAccess, tensor: Any) -> bool:
    """Tell whether an operation made a tensor that needs a gradient: no node is touched, whoever runs it."""
    return bool(access.read(tensor, "requires_grad")) and not access.read(tensor, "is_leaf")


def _count(access: TorchAccess, tensors: Sequence[Any], budget: Budget, max_nodes: int) -> Autograd | None:
    walk = GraphWalk(access, budget, max_nodes)
    not_counted: set[int | None] = {None}
    cut = False
    for tensor in tensors:
        if budget.worked(_STEPS_A_TENSOR):
            cut = True
            break
        not_counted.add(access.storage(tensor))
        if walk.full:
            cut = cut or _has_graph(access, tensor)
        elif (node := access.grad_fn(tensor)) is not None:
            walk.start(node, tensor, ".grad_fn")
    sizes: dict[int, int] = {}
    for node in walk.walk():
        leaf = access.variable(node)
        if leaf is not None:
            not_counted.add(access.storage(leaf))
        for tensor in _tensors_of(access, node):
            storage = access.storage(tensor)
            if storage is not None and storage not in sizes and storage not in not_counted:
                sizes[storage] = access.storage_bytes(tensor)
    kept = [size for storage, size in sizes.items() if size and storage not in not_counted]
    return Autograd(len(walk.nodes), len(kept), sum(kept), cut=cut or walk.cut) if walk.nodes or cut else None


def _tensors_of(access: TorchAccess, node: Any) -> Iterable[Any]:
    values = [saved.value for saved in access.saved(node)]
    if access.is_custom(node):
        values.extend(_contents(safe_access.instance_dict(node)))
    for value in values:
        if access.is_tensor(value):
            yield value
        else:  # `torch.autograd.graph.save_on_cpu` packs (device, tensor)
            yield from [content for content in _contents(value) if access.is_tensor(content)]


def _contents(value: Any) -> list[Any]:
    if type(value) is dict:
        return list(value.values())
    return list(value) if type(value) is tuple or type(value) is list else []


STEPS: Final = 10_000_000
"""Steps (`heap.budget`) of reading the gradients of all live tensors: 300,000."""


def reveal(devices: set[str]) -> dict[str, list[object] | None]:
    """Give gradients of visible tensors on these devices that only C++ knew a lasting Python object; return them by device.

    None stands for gradients that could not all be read, since a backward pass may run or there are too many.
    """
    access = TorchAccess.of_loaded()
    if access is None:
        return {}
    with access.quiet(), PausedCollector(), no_backward_running() as resting:
        if not resting:
            return dict.fromkeys(devices)
        tensors: list[Any] = select_arrays(get_objects(), [access.tensor_class])
        known = {access.storage(tensor) for tensor in tensors} | {None}
        budget = Budget(STEPS)
        gradients = _gradients(access, tensors, budget)
        found = {id(value): value for value in gradients if access.storage(value) not in known}
        if budget.spent:
            return dict.fromkeys(devices)
        by_device = [(str(access.read(value, "device")), value) for value in found.values()]
        return {device: [value for place, value in by_device if place == device] for device in devices}


def _gradients(access: TorchAccess, tensors: list[Any], budget: Budget) -> Iterator[Any]:
    # Other threads must not be blocked for longer: see `adapters.torch.backward_pass`.
    for tensor in budget.affordable(tensors, _STEPS_A_TENSOR):
        gradient = access.read(tensor, "grad") if access.may_have_gradient(tensor) else None
        if gradient is not None and access.is_tensor(gradient):
            yield gradient
