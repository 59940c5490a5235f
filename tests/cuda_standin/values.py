"""Values for the CUDA stand-in: carry each CUDA operator of torch out on the CPU.

The operator's own kernel runs first: it allocates and launches as on a device, and computes nothing. Then the CPU's
operator runs on the same memory: device memory is host memory here, so that nothing is copied.
Installed as `cuda_standin_values`, and imported by `cuda_standin_hook`.
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

if TYPE_CHECKING:
    from collections.abc import Callable

LEFT_ALONE = (
    # These allocate, or look at a tensor in another way, and compute nothing.
    "empty", "_efficientzero", "as_strided", "view", "_reshape_alias", "set_", "resize_", "is_set_to", "record_stream",
    "_pin_memory", "is_pinned", "_local_scalar_dense", "_indices", "_values", "_assert_async",
    # These are of the device alone: cuDNN, fused optimizers, attention, gradient scaling.
    "_cudnn", "cudnn", "_fused", "_thnn", "_flash", "_efficient_attention", "_scaled_dot", "_amp", "_foreach_copy",
    # The memory of these is no plain storage.
    "_nested", "_to_sparse", "_sparse", "sparse", "_coalesce",
)  # fmt: skip
"""Beginnings of operators' names that keep their own kernel."""
SIZED_BY_VALUES = ("nonzero", "masked_select", "_unique", "unique", "bincount", "repeat_interleave")
"""Beginnings of operators' names whose result has a size that only the values tell. Their kernel is not run."""


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the CPU over the memory of a tensor of the device."""
    if tensor.device.type != "cuda":
        return tensor
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    if not size:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    raw = torch.frombuffer((ctypes.c_char * size).from_address(storage.data_ptr()), dtype=torch.uint8)
    whole = raw[: size - size % tensor.element_size()].view(tensor.dtype)
    plain = torch.as_strided(whole, tensor.size(), tensor.stride(), tensor.storage_offset())
    if tensor.is_neg():
        return torch._neg_view(plain)
    return torch._conj(plain) if tensor.is_conj() else plain


def argument_on_host(value: Any) -> Any:
    """Return what the CPU's operator is given for an argument."""
    if isinstance(value, torch.Tensor):
        return on_host(value)
    if isinstance(value, torch.Generator):
        return None
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return value


def carried_out(operator: Any, kernel: Any, sized_by_values: bool) -> Callable[..., Any]:
    """Return an implementation that runs the kernel, and then the CPU's operator on the same memory."""
    changes_arguments = operator._schema.is_mutable
    of_tensors = [index for index, each in enumerate(operator._schema.arguments) if str(each.type) == "Tensor"]

    def with_tensors(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replace the numbers that Python passed where the schema has a tensor."""
        if not any(
            isinstance(arguments[index], (int, float, complex)) for index in of_tensors if index < len(arguments)
        ):
            return arguments
        return tuple(
            torch.tensor(each) if index in of_tensors and isinstance(each, (int, float, complex)) else each
            for index, each in enumerate(arguments)
        )

    def on_cpu(arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return operator(*tree_map(argument_on_host, arguments), **tree_map(argument_on_host, named))

    def run(keys: Any, *arguments: Any, **named: Any) -> Any:
        if sized_by_values:
            tensors = [each for each in tree_flatten((arguments, named))[0] if isinstance(each, torch.Tensor)]
            device = tensors[0].device
            found = on_cpu(arguments, named)
            return tree_map(lambda each: each.to(device) if isinstance(each, torch.Tensor) else each, found)
        arguments = with_tensors(arguments)
        made = kernel.call_boxed(keys, *arguments, **named)
        try:
            found = on_cpu(arguments, named)
        except NotImplementedError:  # the CPU has no such operator
            return made
        if changes_arguments:
            return made
        if isinstance(made, (bool, int, float)):
            return found
        for target, value in zip(tree_flatten(made)[0], tree_flatten(found)[0], strict=False):
            if isinstance(target, torch.Tensor) and target.shape == value.shape and target.numel():
                on_host(target).copy_(value)
        return made

    return run


def register() -> torch.library.Library:
    """Replace the implementations of torch's CUDA operators. Returns what keeps them registered."""
    library = torch.library.Library("aten", "IMPL")
    for full_name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
        namespace, _, name = full_name.partition("::")
        base, _, overload = name.partition(".")
        if namespace != "aten" or base.startswith(LEFT_ALONE):
            continue
        try:
            operator = getattr(getattr(torch.ops.aten, base), overload or "default")
            kernel = torch.library.get_kernel(operator, "CUDA")
            implementation = carried_out(operator, kernel, base.startswith(SIZED_BY_VALUES))
            library.impl(name, implementation, "CUDA", with_keyset=True, allow_override=True)
        except (AttributeError, RuntimeError) as error:
            sys.stderr.write(f"cuda-standin: {full_name} has no values: {type(error).__name__}: {error}\n")
    # Registered for another key, from which CUDA's tensors reach it.
    copy = torch.ops.aten.copy_.default
    library.impl("copy_", carried_out(copy, torch.library.get_kernel(copy, "CUDA"), False), "CUDA", with_keyset=True)
    return library


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch warns of each implementation that is replaced
    LIBRARY = register()
