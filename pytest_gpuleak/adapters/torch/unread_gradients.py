"""Give unread gradients a Python object, which `gc` needs, where a counter has grown and no array explains it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.arrays import select_arrays
from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess
from pytest_gpuleak.adapters.torch.backward_pass import no_backward_running
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.collector import PausedCollector, get_objects

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS: Final = 10_000_000
"""Steps (`heap.budget`) of reading the gradients of all live tensors: 300,000."""

_STEPS_A_TENSOR: Final = 32
"""Cost of reading a tensor, in steps of `Budget.worked`."""


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
