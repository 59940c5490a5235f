"""Tell how a `torch.nn.Module` stores its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Sequence


class TorchModules:
    """Layers, parameters and buffers."""

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


def _is_module(value: object, *names: str) -> bool:
    return any(
        safe_access.class_name(cls) in names and safe_access.in_package(cls, "torch.nn.modules")
        for cls in safe_access.mro(type(value))
    )
