"""Read and hold torch's tensors by their C classes' descriptors, independently of `sys.modules`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.torch import storages
from pytest_gpuleak.adapters.torch.lookup import loaded_torch
from pytest_gpuleak.heap.safe_access import class_dict, mro
from pytest_gpuleak.model.readings import ArrayReading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpuleak.adapters.protocol import StorageHandle
    from pytest_gpuleak.model.readings import MemoryRange

_NUMBERS = frozenset((int,))


class _TensorReference:
    """A weak hold on a tensor without a storage: the address of its TensorImpl, and torch's ``_WeakTensorRef``."""

    __slots__ = ("_reference", "storage")

    def __init__(self, key: int, reference: Any) -> None:
        self.storage = key
        self._reference = reference

    def alive(self) -> bool:
        """Return whether the tensor still has an owner."""
        return not self._reference.expired()


def storage(array: object) -> int:
    """Return the address of a tensor's StorageImpl; of its TensorImpl if the layout has no storage (sparse)."""
    torch = loaded_torch()
    with torch._C.DisableTorchFunction():
        return storage_key(torch, array)


def storage_key(torch: Any, array: object) -> int:
    """Like `storage`, within a context in which torch functions are off."""
    try:
        return int(torch._C._storage_address(array))
    except (NotImplementedError, RuntimeError):
        return int(torch._C.TensorBase._cdata.__get__(array))


def read_many(arrays: Iterable[object]) -> list[ArrayReading | None]:
    """Return the metadata of each tensor; None for tensors without identifiable memory."""
    torch = loaded_torch()
    readings: list[ArrayReading | None] = []
    # Modes are off too: torch.set_default_device() installs one, and a user's mode runs user code.
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        text_of = cache(lambda value: str(value).removeprefix("torch."))  # each is read many times
        for array in arrays:
            try:
                readings.append(_read(torch, array, text_of))
            except Exception:  # noqa: BLE001 - torch itself cannot describe the layout: no identifiable memory
                readings.append(None)
    return readings


def hold(array: object) -> StorageHandle:
    """Return a weak hold on a tensor's memory."""
    return hold_many((array,))[0]


def hold_many(arrays: Iterable[object]) -> list[StorageHandle]:
    """Return a weak hold on each tensor's memory."""
    torch = loaded_torch()
    handles: list[StorageHandle] = []
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        base, storage_of_tensor = torch._C.StorageBase, torch._C.TensorBase.untyped_storage
        for array in arrays:
            try:
                handles.append(storages.StorageReference(base, storage_of_tensor(array)))
            except (NotImplementedError, RuntimeError):
                handles.append(_TensorReference(storage_key(torch, array), torch._C._WeakTensorRef(array)))
    return handles


def storage_users(array: object) -> int | None:
    """Return how many share a tensor's storage, its Python object left out; None if unknown."""
    torch = loaded_torch()
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        try:
            key = int(torch._C.TensorBase.untyped_storage(array)._cdata)
            return int(torch._C._storage_Use_Count(key)) - 1
        except (AttributeError, NotImplementedError, RuntimeError):
            return None


def memory(array: object) -> MemoryRange | None:
    """Return where the storage of a tensor that owns memory is; None for a copy-on-write tensor, which would copy."""
    return memory_many((array,))[0]


def memory_many(arrays: Iterable[object]) -> list[MemoryRange | None]:
    """Return for each tensor what `memory` returns."""
    torch = loaded_torch()
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        return [_memory(torch, array) for array in arrays]


def _memory(torch: Any, array: object) -> MemoryRange | None:
    native = torch._C
    try:
        if _wraps_other_arrays(torch, array) or torch._is_functional_tensor(array) or native._is_cow_tensor(array):
            return None
        return storages.memory(native.TensorBase.untyped_storage(array))
    except Exception:  # noqa: BLE001 - sparse layouts and wrappers made by hand have no single storage
        return None


def _wraps_other_arrays(torch: Any, array: object) -> bool:
    """Return whether the tensor is a wrapper subclass: its inner tensors are found on their own."""
    if type(array) is torch.Tensor or type(array) is torch.nn.Parameter:
        return False  # the common case, decided without a look at the bases
    return any("__tensor_flatten__" in class_dict(line) for line in mro(type(array)))


def _read(torch: Any, array: Any, text_of: Callable[[Any], str]) -> ArrayReading | None:
    native = torch._C
    if _wraps_other_arrays(torch, array) or torch._is_functional_tensor(array):
        return None
    tensor = native.TensorBase
    shape = _shape(tensor, array)
    dtype = text_of(tensor.dtype.__get__(array))
    if native._has_storage(array):
        storage = tensor.untyped_storage(array)
        size, device = int(storage.nbytes()), text_of(storage.device)
        if device.startswith("meta") or size == 0 or not _has_data(torch, array, storage):
            return None
        shown = min(size, int(tensor.numel(array)) * int(tensor.element_size(array)))
        return ArrayReading(id(array), shape, dtype, device, shown, int(storage._cdata), size)
    device = text_of(tensor.device.__get__(array))
    size = _sparse_bytes(tensor, array)
    if device.startswith("meta") or size == 0:
        return None
    return ArrayReading(id(array), shape, dtype, device, size, int(tensor._cdata.__get__(array)), size)


def _shape(tensor: Any, array: Any) -> tuple[int, ...]:
    try:
        shape = tuple(tensor.size(array))
        return shape if _NUMBERS.issuperset(map(type, shape)) else tuple(map(int, shape))  # else symbolic
    except Exception:  # noqa: BLE001 - a nested tensor has no single shape
        return ()


def _has_data(torch: Any, array: Any, storage: Any) -> bool:
    """Return whether a storage with a size has memory: the storages in handmade wrapper subclasses have none."""
    if torch._C._is_cow_tensor(array):
        return True  # reading the pointer would materialise a copy-on-write tensor
    try:
        return bool(storage.data_ptr())
    except RuntimeError:  # "invalid python storage"
        return False


def _sparse_bytes(tensor: Any, array: Any) -> int:
    layout = str(tensor.layout.__get__(array))
    if layout == "torch.sparse_coo":
        parts = [tensor._indices(array), tensor._values(array)]
    elif layout in {"torch.sparse_csr", "torch.sparse_bsr"}:
        parts = [tensor.crow_indices(array), tensor.col_indices(array), tensor.values(array)]
    elif layout in {"torch.sparse_csc", "torch.sparse_bsc"}:
        parts = [tensor.ccol_indices(array), tensor.row_indices(array), tensor.values(array)]
    else:
        return int(tensor.numel(array)) * int(tensor.element_size(array))
    return sum(int(tensor.numel(part)) * int(tensor.element_size(part)) for part in parts)
