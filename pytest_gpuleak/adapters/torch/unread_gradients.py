"""Arrays that Python has never seen: gradients that nobody has read.

`gc` shows an array from the time that it has a Python object. Where a counter has grown and no array explains it, these
are given one, so that they are judged as any other. What autograd nodes saved is not among them: torch makes an object
for it whenever it is read, which does not stay (torch/csrc/autograd/saved_variable.cpp); it is counted with the graph
of the tensor that leads there, or as bytes that nothing explains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.arrays import select_arrays
from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess
from pytest_gpuleak.adapters.torch.backward_pass import engine_at_rest
from pytest_gpuleak.heap.collector import get_objects, whole_heap
from pytest_gpuleak.heap.referrers import Deadline, PausedCollector

if TYPE_CHECKING:
    from collections.abc import Iterator

READING_S: Final = 1.0
"""Seconds that reading the gradients of all live tensors may take: 50 ms on a heap of 170,000 objects."""

_STEPS_A_TENSOR: Final = 32
"""Small steps that reading a tensor amounts to, for `Deadline.worked`."""


def reveal(devices: set[str]) -> dict[str, list[object]]:
    """Give the arrays that C++ alone knew a Python object, and return these by device: strong references.

    They are the gradients of live tensors. torch keeps such an object as long as the gradient lives, so that each is
    found once.

    Args:
        devices: only arrays on these.
    """
    access = TorchAccess.of_loaded()
    if access is None:
        return {}
    revealed: dict[str, list[object]] = {device: [] for device in devices}
    with whole_heap(), access.quiet(), PausedCollector(), engine_at_rest(READING_S) as resting:
        if not resting:
            return revealed
        tensors: list[Any] = select_arrays(get_objects(), [access.tensor_class])
        known = {access.storage(tensor) for tensor in tensors} | {None}
        gradients = _gradients(access, tensors, Deadline(READING_S))
        found = {id(value): value for value in gradients if access.storage(value) not in known}
        for value in found.values():
            device = str(access.read(value, "device"))
            if device in revealed:
                revealed[device].append(value)
    return revealed


def _gradients(access: TorchAccess, tensors: list[Any], deadline: Deadline) -> Iterator[Any]:
    for tensor in tensors:
        if deadline.worked(_STEPS_A_TENSOR):
            return  # threads that run a graph backward are not held up for longer: see `adapters.torch.backward_pass`
        # Of any other, torch warns that it will not have one (torch/csrc/autograd/python_variable.cpp).
        may_have_one = access.read(tensor, "is_leaf") or access.read(tensor, "retains_grad")
        gradient = access.read(tensor, "grad") if may_have_one else None
        if gradient is not None and access.is_tensor(gradient):
            yield gradient
