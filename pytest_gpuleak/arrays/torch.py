"""torch tensors, as Python sees them. torch is never imported here: it is looked up once the tests have done so."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import TYPE_CHECKING, Any, TypeGuard

from pytest_gpuleak.arrays.origins import OriginTable
from pytest_gpuleak.arrays.protocol import ArrayReading, OriginLog, StorageHandle, class_lines, is_kind_of, walk_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        self._tensor: type | None = None

    def array_type(self) -> type | None:
        """``torch.Tensor``, or None while torch is not imported (or is being imported, or is a user's stand-in)."""
        module = sys.modules.get("torch")
        if module is None or not is_kind_of(type(module), types.ModuleType):
            return None
        tensor = _module_dict(module).get("Tensor")
        if tensor is not self._tensor:
            self._tensor = tensor if _is_tensor_class(tensor) else None
        return self._tensor

    def storage(self, array: object) -> int:
        """Address of the StorageImpl; of the TensorImpl where a layout has none (sparse, opaque)."""
        torch = _torch()
        with torch._C.DisableTorchFunction():
            return _storage_key(torch, array)

    def read(self, array: object) -> ArrayReading | None:
        """Metadata of a tensor; None for fake, meta, functional, wrapper and empty ones, which own no memory."""
        torch = _torch()
        # Modes too are switched off: torch.set_default_device() installs one, and a user's mode is a stranger's code.
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            try:
                return _read(torch, array)
            except Exception:  # noqa: BLE001 - a layout that torch itself cannot describe: no memory we could name
                return None

    def hold(self, array: object) -> StorageHandle:
        """A C++ weak reference to the storage, or to the tensor where there is no storage."""
        torch = _torch()
        from torch.multiprocessing.reductions import StorageWeakRef

        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            key = _storage_key(torch, array)
            try:
                return WeakHandle(key, StorageWeakRef(torch.Tensor.untyped_storage(array)))
            except (NotImplementedError, RuntimeError):
                return WeakHandle(key, torch._C._WeakTensorRef(array))

    @contextlib.contextmanager
    def trace_origins(self, is_user_file: Callable[[str], bool]) -> Iterator[OriginLog]:
        """Run the body under a dispatch mode that notes where each storage is made.

        A dispatch mode sees every operation, those of backward and of composite functions included, where a function
        mode sees the calls from Python alone. It is local to the thread.
        """
        torch = _torch()
        from torch.utils._python_dispatch import TorchDispatchMode

        table = OriginTable(is_user_file)

        class NoteOrigins(TorchDispatchMode):  # type: ignore[misc] # torch is Any to a project that does not pin it
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                _note(torch, table, func, (args, kwargs), result)
                return result

        with NoteOrigins():
            yield table


def _torch() -> Any:
    return sys.modules["torch"]


def _is_tensor_class(candidate: object) -> TypeGuard[type]:
    """Whether it is torch's own class: a test may put a stand-in module named torch into sys.modules."""
    return is_kind_of(type(candidate), type) and any(line.__name__ == "TensorBase" for line in class_lines(candidate))  # type: ignore[arg-type]


def _storage_key(torch: Any, array: object) -> int:
    try:
        return int(torch._C._storage_address(array))
    except (NotImplementedError, RuntimeError):
        return int(torch.Tensor._cdata.__get__(array))


def _wraps_other_arrays(array: object) -> bool:
    """Whether the tensor is a wrapper subclass: the tensors inside are found on their own."""
    return any("__tensor_flatten__" in _class_dict(line) for line in class_lines(type(array)))


def _read(torch: Any, array: Any) -> ArrayReading | None:
    if _wraps_other_arrays(array) or torch._is_functional_tensor(array):
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
        return tuple(int(length) for length in tensor.size(array))
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


def _note(torch: Any, table: OriginTable, func: Any, given: Any, made: Any) -> None:
    """Note the line of each storage in an operation's result that none of its inputs has."""
    try:
        with torch._C.DisableTorchFunction():
            known = {_storage_key(torch, array) for array in walk_arrays(list(given), torch.Tensor)}
            # torch.tensor() makes its data with modes off and shows it first as the input of this alias.
            fresh = str(func).startswith("aten.lift")
            for array in walk_arrays(made, torch.Tensor):
                key = _storage_key(torch, array)
                if fresh or key not in known:
                    table.note(key)
                else:
                    table.note_if_unknown(key)
    except Exception:  # noqa: BLE001 - a creating line is evidence; failing the user's re-run for it would be worse
        table.failed = True
