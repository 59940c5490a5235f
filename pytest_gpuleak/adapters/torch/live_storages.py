"""Tell which storages operators make, from their arguments and results alone, and when each ends.

A storage that an operator returns and was not given is one that it has made: what was there before need not be known, so no
walk over the heap looks for it. One that was made by itself, as `torch.load` does, is new once a tensor is given it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from pytest_gpuleak.adapters.arrays import walk_arrays
from pytest_gpuleak.adapters.torch.compiler import leave_uncompiled
from pytest_gpuleak.heap.frames import belongs_to_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

RESIZING: Final = frozenset(("resize_", "resize_as_", "set_", "_resize_output_"))
"""Operators that give a tensor a storage of another size, or another one."""

FRESH: Final = "lift_fresh"
"""The operator that is given Python's values as a tensor, which no operator has made."""

_FILLING: Final = frozenset(("scatter", "scatter_add", "masked_scatter", "index_put", "index_add", "index_fill", "put"))
"""Operators that put values into another's place, of which a backward pass makes zeros."""

_WEIGHED: Final = "BinaryCrossEntropyWithLogitsBackward0"
OTHER_UNDER_A_MODE: Final = frozenset(
    ("ProdBackward0", "ProdBackward1", "CumprodBackward0", "MaxBackward1", "MinBackward1", _WEIGHED)
)
"""Autograd nodes that look at values, and do all that any need where a mode is (torch/csrc/autograd/FunctionsManual.cpp)."""

_STORAGES: Final = os.path.join("torch", "storage.py")  # noqa: PTH118 - compared with names of code
"""Copies storages as tensors that it drops, of old and new ones alike."""


class _Handle(ref):  # type: ignore[type-arg] # of a class of torch's
    """A weak reference on a storage, which ends when its memory does, also where an autograd graph alone held it."""

    __slots__ = ("key", "noted", "size")

    key: int
    noted: Any
    size: int


class LiveStorages:
    """What was noted of the storages that operators have made and that are alive; `ended` is told of each that ends."""

    def __init__(self, torch: Any, ended: Callable[[Any], None]) -> None:
        self._address: Any = torch._C._storage_address
        self._storage_of: Any = torch._C.TensorBase.untyped_storage
        self._plain = frozenset((torch.Tensor, torch.nn.Parameter))
        self._base: Any = torch._C.TensorBase
        self._torch, self._ended = torch, ended
        self._resizes, self.makes = functools.cache(_resizes), functools.cache(self._makes)
        self._alive: dict[int, _Handle] = {}

    def _makes(self, operator: Any) -> bool:
        """Return whether an operator may make a storage: not if its results are its arguments or views of them alone.

        One that is made of others may copy them where autograd does not record.
        """
        of_others = self._torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")
        return (
            of_others
            or operator._opname in (FRESH, "set_")
            or _resizes(operator)
            or any(result.alias_info is None for result in operator._schema.returns)
        )

    def find(self, tensor: Any) -> Any:
        """Return what was noted of a tensor's storage; None if it was there before, or the tensor has none."""
        try:
            handle = self._alive.get(self._address(tensor))
        except Exception:  # noqa: BLE001 - a sparse tensor, or one that wraps others
            wrappers = self._torch._C._functorch
            is_wrapped = wrappers.is_functorch_wrapped_tensor(tensor)
            return self.find(wrappers.get_unwrapped(tensor)) if is_wrapped else None
        return None if handle is None else handle.noted

    def parts(self, tensor: Any) -> tuple[Any, ...]:
        """Return the tensors that have a sparse one's memory; any other itself."""
        if tensor.layout is self._torch.sparse_coo:
            return tensor._indices(), tensor._values()
        if tensor.layout in (self._torch.sparse_csr, self._torch.sparse_bsr):
            return tensor.crow_indices(), tensor.col_indices(), tensor.values()
        return (tensor,)

    def made_by(self, operator: Any, results: Iterable[Any], given: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Yield the results whose storage an operator has made or resized, the storage, and what was noted of it before.

        The caller holds each before it asks for the next, which may share the storage. Raises NotImplementedError for a
        tensor without a storage.
        """
        there: set[int] | None = None
        for tensor in results:
            key = self._address(tensor)
            handle = self._alive.get(key)
            if handle is not None:
                if self._resizes(operator) and (storage := self._storage_of(tensor)).nbytes() != handle.size:
                    yield tensor, storage, handle.noted
                continue
            if there is None:
                there = {0} if operator._opname == FRESH or is_given_storage(operator) else self._addresses(*given)
            if key not in there:
                yield tensor, self._storage_of(tensor), None

    @contextlib.contextmanager
    def resizes(self, tell: Callable[[Any, Any], object]) -> Iterator[None]:
        """Tell of storages whose own `resize_` is called, which is no operator, and what was noted; of older ones, if they grow."""
        kind = self._torch.UntypedStorage
        real, alive = kind.resize_, self._alive

        def resize_(storage: Any, *args: Any, **kwargs: Any) -> Any:
            before = storage.nbytes()
            result = real(storage, *args, **kwargs)
            handle, size = alive.get(storage._cdata), storage.nbytes()
            if size > before or (handle is not None and size < before):
                tell(storage, None if handle is None else handle.noted)
            return result

        leave_uncompiled(self._torch, (resize_,))
        kind.resize_ = resize_
        try:
            yield
        finally:
            if vars(kind).get("resize_") is resize_:
                del kind.resize_

    def _addresses(self, args: Any, kwargs: Any) -> set[int]:
        found = {0}
        for value in (*args, *kwargs.values()) if kwargs else args:
            for tensor in (value,) if type(value) in self._plain else walk_arrays(value, self._base):
                try:
                    found.add(self._address(tensor))
                except NotImplementedError:
                    found.update(self._address(part) for part in self.parts(tensor) if part is not tensor)
        return found

    def hold(self, storage: Any, noted: Any) -> None:
        """Note a storage until it ends. Of one that was resized, what was noted before is told no more."""
        handle = _Handle(storage, self._died)
        handle.key, handle.noted, handle.size = storage._cdata, noted, storage.nbytes()
        self._alive[handle.key] = handle

    def _died(self, handle: _Handle) -> None:
        if self._alive.get(handle.key) is handle:
            del self._alive[handle.key]
            self._ended(handle.noted)

    def close(self) -> list[Any]:
        """Return what was noted of those that are alive; what ends from now on is told no more."""
        left = [handle.noted for handle in self._alive.values()]
        self._alive.clear()
        return left


def is_given_storage(operator: Any) -> bool:
    """Return whether a tensor is given a storage that was made by itself, or else an older tensor's: they look the same.

    Call it while the operator's caller runs.
    """
    if operator._opname != "set_" or not operator._overloadname.startswith("source_Storage"):
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and belongs_to_plugin(frame.f_globals):
        frame = frame.f_back
    return frame is None or not frame.f_code.co_filename.endswith(_STORAGES)


def may_reuse(torch: Any, operator: Any, args: Any, node: Any) -> bool:
    """Return whether an operator may be one of a backward pass that has its first argument's memory where no mode is.

    A sum of two gradients of one tensor is made in the first one's memory if nobody else has it, as a view's base does
    (torch/csrc/autograd/input_buffer.cpp), and values are put into zeros that were made for them (`areAnyTensorSubclassLike`,
    ATen/TensorSubclassLikeUtils.h). Under a mode both take memory of their own, and the first argument ends right after.
    """
    if node is None:
        return False
    if operator is torch.ops.aten.add.Tensor:
        return not (torch.is_grad_enabled() or torch._C.TensorBase._is_view(args[0]))
    return operator._opname in _FILLING


def takes_other_steps(node: Any) -> bool:
    """Return whether an autograd node that runs does so in other steps where a mode is, which do not tell what it takes without.

    One with weights of classes changes values in place where no mode is (native/Loss.cpp).
    """
    name = type(node).__name__
    return name in OTHER_UNDER_A_MODE and (name != _WEIGHED or node._raw_saved_pos_weight.data is not None)


def _resizes(operator: Any) -> bool:
    schema = operator._schema
    return bool(schema.is_mutable) and (operator._opname in RESIZING or operator._overloadname.endswith("out"))
