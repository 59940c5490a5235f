"""Find references held by torch's C++ code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.protocol import UNTOLD
from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess
from pytest_gpuleak.adapters.torch.lookup import torch_class
from pytest_gpuleak.adapters.torch.node_hooks import is_hook_dict
from pytest_gpuleak.adapters.torch.references import LiveTorchObjects, held_by_torch_alone
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuleak.heap.budget import Budget


class TorchReferences:
    """Searches live tensors, autograd nodes and scripted modules."""

    def owner_counter(self) -> Callable[[object], int | None]:
        """Return a counter of a tensor's C++ owners: ``Tensor._use_count`` less one for the Python object."""
        tensor_class = torch_class("torch._C", "TensorBase")
        if tensor_class is None:
            return lambda _: None
        count: Any = safe_access.class_dict(tensor_class).get("_use_count")

        def owners(value: object) -> int | None:
            if not safe_access.is_a(value, tensor_class):
                return None
            try:
                return UNTOLD if count is None else int(count(value)) - 1
            except Exception:  # noqa: BLE001 - without a count, assume an owner
                return 1

        return owners

    def take_census(self, budget: Budget) -> LiveTorchObjects | None:
        """List torch's live objects; None if torch is not imported."""
        access = TorchAccess.of_loaded()
        return None if access is None else LiveTorchObjects(access, budget)

    def held_alone(self, arrays: list[Any]) -> set[int]:
        """Return the ids of tensors that torch's C++ owners alone keep alive."""
        return held_by_torch_alone(arrays)

    def may_close_rings(self, arrays: Sequence[object]) -> bool:
        """Return whether one of the tensors has an autograd graph, which every such cycle contains."""
        access = TorchAccess.of_loaded()
        if access is None:
            return False
        with access.quiet():
            return any(_has_graph(access, array) for array in arrays)

    def root_of(self, value: object) -> str:
        """Return ``hooks of an autograd graph`` for a dict of hooks; else empty."""
        return "hooks of an autograd graph" if is_hook_dict(value) else ""


def _has_graph(access: TorchAccess, value: Any) -> bool:
    if not access.is_tensor(value) or not access.read(value, "requires_grad"):
        return False
    if not access.read(value, "is_leaf") or safe_access.instance_dict(value):
        return True
    gradient = access.read(value, "grad")
    return access.is_tensor(gradient) and bool(access.read(gradient, "requires_grad"))
