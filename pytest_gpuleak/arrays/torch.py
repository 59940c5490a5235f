"""torch tensors, as Python sees them. torch is never imported here: it is looked up once the tests have done so."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.arrays.selection import class_lines, is_kind_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pytest_gpuleak.arrays.protocol import ArrayReading, OriginLog, StorageHandle

_module_dict: Callable[[object], dict[str, object]] = vars(types.ModuleType)["__dict__"].__get__
_class_dict: Callable[[type], dict[str, object]] = vars(type)["__dict__"].__get__


class WeakHandle:
    """A weak hold on a tensor's storage, by torch's own C++ weak reference.

    Not a Python weak reference to the tensor: ``torch.utils.swap_tensors`` refuses tensors that have one, and a
    module's ``.to()`` calls it for wrapper subclasses, so that one of ours would fail the user's test.
    """

    __slots__ = ("_reference", "storage")

    def __init__(self, storage: int, reference: Any) -> None:
        self.storage = storage
        self._reference = reference

    def alive(self) -> bool:
        """Whether the memory still has an owner."""
        return not self._reference.expired()


class TorchArrays:
    """Reads tensors of a torch that the tests have imported."""

    name = "torch"

    def __init__(self) -> None:
        # Held for good once seen, as every tensor holds it: a test may take torch out of sys.modules, or put something
        # else in its place, while tensors live on.
        self._torch: Any = None

    def array_type(self) -> type | None:
        """``torch.Tensor``, or None while torch is not imported (or is being imported, or is a user's stand-in)."""
        if self._torch is None:
            module = sys.modules.get("torch")
            if module is None or not _is_torch(module):
                return None
            self._torch = module
        tensor: type = self._torch.Tensor
        return tensor

    def storage(self, array: object) -> int:
        """Address of the StorageImpl; of the TensorImpl where a layout has none (sparse, opaque)."""
        torch = self._torch
        with torch._C.DisableTorchFunction():
            return storage_key(torch, array)

    def read(self, array: object) -> ArrayReading | None:
        """Metadata of a tensor; None for fake, meta, functional, wrapper and empty ones, which own no memory."""
        torch = self._torch
        # Modes too are switched off: torch.set_default_device() installs one, and a user's mode is a stranger's code.
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            try:
                return _read(torch, array)
            except Exception:  # noqa: BLE001 - a layout that torch itself cannot describe: no memory we could name
                return None

    def hold(self, array: object) -> StorageHandle:
        """A C++ weak reference to the storage, or to the tensor where there is no storage."""
        torch = self._torch
        from torch.multiprocessing.reductions import StorageWeakRef

        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            key = storage_key(torch, array)
            try:
                return WeakHandle(key, StorageWeakRef(torch.Tensor.untyped_storage(array)))
            except (NotImplementedError, RuntimeError):
                return WeakHandle(key, torch._C._WeakTensorRef(array))

    def storage_users(self, array: object) -> int | None:
        """The reference count of the storage: tensors, those that C++ alone knows among them.

        The storage's own Python object counts as one more from the first time that anybody has asked for it, and stays.
        """
        torch = self._torch
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            try:
                key = int(torch.Tensor.untyped_storage(array)._cdata)
                return int(torch._C._storage_Use_Count(key)) - 1
            except (AttributeError, NotImplementedError, RuntimeError):
                return None

    def trace_origins(self, is_user_file: Callable[[str], bool]) -> AbstractContextManager[OriginLog]:
        """See `torch_origins.trace_origins`."""
        from pytest_gpuleak.arrays.torch_origins import trace_origins

        return trace_origins(self._torch, is_user_file)


def _is_torch(module: object) -> bool:
    """Whether it is torch itself, fully imported: its tensors are made of its own extension module's."""
    extension = sys.modules.get("torch._C")
    if not (is_kind_of(type(module), types.ModuleType) and type(extension) is types.ModuleType):
        return False
    tensor, base = _module_dict(module).get("Tensor"), _module_dict(extension).get("TensorBase")
    return base is not None and is_kind_of(type(tensor), type) and id(base) in map(id, class_lines(tensor))  # type: ignore[arg-type]


def storage_key(torch: Any, array: object) -> int:
    """Address of a tensor's StorageImpl; of the TensorImpl where a layout has none."""
    try:
        return int(torch._C._storage_address(array))
    except (NotImplementedError, RuntimeError):
        return int(torch.Tensor._cdata.__get__(array))


def _wraps_other_arrays(torch: Any, array: object) -> bool:
    """Whether the tensor is a wrapper subclass: the tensors inside are found on their own."""
    if type(array) is torch.Tensor or type(array) is torch.nn.Parameter:
        return False  # nearly all are, and a test may leave hundreds
    return any("__tensor_flatten__" in _class_dict(line) for line in class_lines(type(array)))


def _read(torch: Any, array: Any) -> ArrayReading | None:
    from pytest_gpuleak.arrays.protocol import ArrayReading  # most runs read none

    if _wraps_other_arrays(torch, array) or torch._is_functional_tensor(array):
        return None
    tensor = torch.Tensor
    shape = _shape(tensor, array)
    dtype = str(tensor.dtype.__get__(array)).removeprefix("torch.")
    if torch._C._has_storage(array):
        storage = tensor.untyped_storage(array)
        size = int(storage.nbytes())
        if storage.device.type == "meta" or size == 0 or not _has_data(torch, array, storage):
            return None
        shown = min(size, int(tensor.numel(array)) * int(tensor.element_size(array)))
        return ArrayReading(id(array), shape, dtype, str(storage.device), shown, int(storage._cdata), size)
    device = str(tensor.device.__get__(array))
    size = _sparse_bytes(tensor, array)
    if device.startswith("meta") or size == 0:
        return None
    return ArrayReading(id(array), shape, dtype, device, size, int(tensor._cdata.__get__(array)), size)


def _shape(tensor: Any, array: Any) -> tuple[int, ...]:
    try:
        return tuple(map(int, tensor.size(array)))
    except Exception:  # noqa: BLE001 - a nested tensor has no one shape
        return ()


def _has_data(torch: Any, array: Any, storage: Any) -> bool:
    """Whether there is memory behind a storage that states a size; wrapper subclasses made by hand have none."""
    if torch._C._is_cow_tensor(array):
        return True  # asking for the pointer would make the copy that a copy-on-write tensor puts off
    try:
        return bool(storage.data_ptr())
    except RuntimeError:  # "invalid python storage"
        return False


def _sparse_bytes(tensor: Any, array: Any) -> int:
    """Bytes of the parts of a sparse tensor; of the elements for an opaque (mkldnn) one."""
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
