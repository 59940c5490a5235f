"""Find the constants of TorchScript's programs, which stay until the process ends.

`torch.jit.trace` and `torch.jit.script` compile into one unit, which frees no function (torch/jit/_state.py, `_python_cu`).
A tensor that a trace meets and that is neither an argument nor part of the module is a constant of the program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.torch.lookup import torch_class, torch_module
from pytest_gpuleak.heap import safe_access

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pytest_gpuleak.heap.budget import Budget

_NODES: Final = "prim::Constant"
_STEPS_A_PROGRAM: Final = 128
"""Cost of listing a program's constants, in steps of `Budget.worked`."""


def compilation_unit() -> Any:
    """Return the unit that all programs are compiled into; None if `torch.jit` is not imported."""
    namespace = safe_access.module_dict(torch_module("torch.jit._state"))
    kind = torch_class("torch._C", "CompilationUnit")
    unit = None if namespace is None else namespace.get("_python_cu")
    return unit if kind is not None and safe_access.is_a(unit, kind) else None


def constants(unit: Any, shapes: Collection[tuple[int, ...]], budget: Budget) -> Iterator[tuple[Any, str]]:
    """Yield the constants of these shapes, each with the code that reads it from the unit.

    A constant of another shape is not read: that would give it a Python object for as long as it lives.
    """
    for program in budget.affordable(unit.get_functions(), _STEPS_A_PROGRAM):
        read = f".find_function({program.qualified_name!r}).graph.findAllNodes({_NODES!r})"
        for index, node in enumerate(program.graph.findAllNodes(_NODES)):
            if node.hasAttribute("value") and node.kindOf("value") == "t":
                sizes = node.output().type().sizes()
                if sizes is not None and tuple(sizes) in shapes:
                    yield node.t("value"), f"{read}[{index}].t('value')"
