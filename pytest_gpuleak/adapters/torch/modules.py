"""Tell how a `torch.nn.Module` stores its parts, and a tensor its hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.torch.lookup import torch_class
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Sequence


class TorchModules:
    """Layers, parameters and buffers; hooks of tensors."""

    mark = " (torch.nn.Module)"
    names: Sequence[str] = ("_parameters", "_buffers", "_modules")

    def keeps_parts(self, owner: object) -> bool:
        """Return whether an object is a `torch.nn.Module`."""
        return _is_module(owner, "Module")

    def edge(self, owner: object, name: str) -> str | None:
        """Return the part as an index or attribute; None if its name is no identifier."""
        if _is_module(owner, "ModuleDict", "ParameterDict"):
            return f"[{name!r}]"
        if name.isdigit() and _is_module(owner, "Sequential", "ModuleList", "ParameterList"):
            return f"[{name}]"
        return f".{name}" if safe_access.is_attribute_name(name) else None

    def inside(self, owner: object, value: object) -> str | None:
        """Return the attribute of a tensor's hooks (torch/csrc/autograd/python_variable.cpp, THPVariable_traverse)."""
        tensor = torch_class("torch._C", "TensorBase")
        if tensor is None or not safe_access.is_a(owner, tensor):
            return None
        # A subclass's own `__torch_function__` would run for each attribute that is read.
        overrides = (one for one in safe_access.mro(type(owner)) if "__torch_function__" in safe_access.class_dict(one))
        if not all(safe_access.in_package(one, "torch") for one in overrides):
            return None
        hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")
        return next((f".{name}" for name in hooks if safe_access.slot(owner, tensor, name) is value), None)


def _is_module(value: object, *names: str) -> bool:
    return any(
        safe_access.class_name(cls) in names and safe_access.in_package(cls, "torch.nn.modules")
        for cls in safe_access.mro(type(value))
    )
