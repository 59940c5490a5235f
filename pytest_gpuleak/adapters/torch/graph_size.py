"""Measure the memory that the autograd graph of leaked tensors retains, as after ``history.append(loss)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess
from pytest_gpuleak.adapters.torch.autograd_walk import MAX_NODES, GraphWalk
from pytest_gpuleak.adapters.torch.backward_pass import no_backward_running
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.referrers import Deadline, PausedCollector
from pytest_gpuleak.model.findings import Autograd

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_STEPS_A_TENSOR: Final = 32
"""Cost of reading a tensor, in steps of `Deadline.worked`."""

BUDGET_S: Final = 1.0
"""Time in seconds after which the count stops with its result so far."""


def retained_by_graph(
    tensors: Sequence[Any], *, budget_s: float = BUDGET_S, max_nodes: int = MAX_NODES
) -> Autograd | None:
    """Return how much the autograd graph behind `tensors` keeps alive beyond them, in at most `budget_s` seconds.

    Counts nodes, and saved tensors with own storages, each once, but no leaves, which live with their model. A lower
    bound where parts are unreadable or too deep. None without a graph, or while other threads run backward passes.
    """
    access = TorchAccess.of_loaded()
    if access is None:
        return None
    with access.quiet(), PausedCollector(), no_backward_running(budget_s) as resting:
        if not resting:
            return None
        return _count(access, [tensor for tensor in tensors if access.is_tensor(tensor)], Deadline(budget_s), max_nodes)


def _count(access: TorchAccess, tensors: Sequence[Any], deadline: Deadline, max_nodes: int) -> Autograd | None:
    walk = GraphWalk(access, deadline, max_nodes)
    not_counted: set[int | None] = {None}
    for tensor in tensors:
        if deadline.worked(_STEPS_A_TENSOR):
            break
        not_counted.add(access.storage(tensor))
        node = None if walk.full else access.grad_fn(tensor)
        if node is not None:
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
    return Autograd(len(walk.nodes), len(kept), sum(kept)) if walk.nodes else None


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
