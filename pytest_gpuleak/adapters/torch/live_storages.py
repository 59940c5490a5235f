"""Tell which storages operators make, from their arguments and results alone, and when each ends.

A storage that an operator returns and was not given is one that it has made: what was there before need not be known, so no
walk over the heap looks for it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from pytest_gpuleak.adapters.arrays import walk_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

RESIZING: Final = frozenset(("resize_", "resize_as_", "set_", "_resize_output_"))
"""Operators that give a tensor a storage of another size, or another one."""

_FROM_OUTSIDE: Final = frozenset(("lift_fresh", "set_"))
"""Operators that are given what no operator has made: Python's values as a tensor, a storage that was made by itself."""


class _Handle(ref):  # type: ignore[type-arg] # of a class of torch's
    """A weak reference on a storage, which ends when its memory does, also where an autograd graph alone held it."""

    __slots__ = ("key", "noted")

    key: int
    noted: Any


class LiveStorages:
    """What was noted of the storages that operators have made and that are alive; `ended` is told of each that ends."""

    def __init__(self, torch: Any, ended: Callable[[Any], None]) -> None:
        self._address: Any = torch._C._storage_address
        self._storage_of: Any = torch._C.TensorBase.untyped_storage
        self._plain = frozenset((torch.Tensor, torch.nn.Parameter))
        self._base: Any = torch._C.TensorBase
        self._torch, self._ended = torch, ended
        self._resizes = functools.cache(_resizes)
        self._alive: dict[int, _Handle] = {}

    def find(self, tensor: Any) -> Any:
        """Return what was noted of a tensor's storage; None if it was there before, or the tensor has none."""
        try:
            handle = self._alive.get(self._address(tensor))
        except Exception:  # noqa: BLE001 - a sparse tensor, or one that wraps others
            return None
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
                if self._resizes(operator):
                    yield tensor, self._storage_of(tensor), handle.noted
                continue
            if there is None:
                there = {0} if operator._opname in _FROM_OUTSIDE else self._addresses(*given)
            if key not in there:
                yield tensor, self._storage_of(tensor), None

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
        handle.key, handle.noted = storage._cdata, noted
        self._alive[handle.key] = handle

    def _died(self, handle: _Handle) -> None:
        if self._alive.get(handle.key) is handle:
            del self._alive[handle.key]
            self._ended(handle.noted)

    def close(self) -> list[Any]:
        """Return what was noted of those that are alive; what ends from now on is told no more."""
        left = [handle.noted for handle in self._alive.values()]
        self._alive = {}
        return left


def _resizes(operator: Any) -> bool:
    schema = operator._schema
    return bool(schema.is_mutable) and (operator._opname in RESIZING or operator._overloadname.endswith("out"))
