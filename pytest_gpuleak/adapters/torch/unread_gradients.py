"""Give unread gradients a Python object, which `gc` needs, where a counter has grown and no array explains it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.arrays import select_arrays
from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess
from pytest_gpuleak.adapters.torch.backward_pass import no_backward_running
from pytest_gpuleak.heap.collector import get_objects, whole_heap
from pytest_gpuleak.heap.referrers import Deadline, PausedCollector

if TYPE_CHECKING:
    from collections.abc import Iterator

READING_S: Final = 1.0
"""Time in seconds that reading the gradients of all live tensors may take: 50 ms on a heap of 170,000 objects."""

_STEPS_A_TENSOR: Final = 32
"""Cost of reading a tensor, in steps of `Deadline.worked`."""


def reveal(devices: set[str]) -> dict[str, list[object]]:
    """Give gradients on these devices that only C++ knew a lasting Python object; return them by device."""
    access = TorchAccess.of_loaded()
    if access is None:
        return {}
    revealed: dict[str, list[object]] = {device: [] for device in devices}
    with whole_heap(), access.quiet(), PausedCollector(), no_backward_running(READING_S) as resting:
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
            return  # other threads must not be blocked for longer: see `adapters.torch.backward_pass`
        # For other tensors torch warns that there is no gradient (torch/csrc/autograd/python_variable.cpp).
        may_have_one = access.read(tensor, "is_leaf") or access.read(tensor, "retains_grad")
        gradient = access.read(tensor, "grad") if may_have_one else None
        if gradient is not None and access.is_tensor(gradient):
            yield gradient
