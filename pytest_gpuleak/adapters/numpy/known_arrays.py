"""Know arrays cheaply: how many references they have to NumPy's own objects, and which are older than a test.

Each array refers to its dtype (NumPy's ``PyArray_DescrFromType`` returns the same object for each type of number), and one
that owns its memory, of any dtype, to the handler that has allocated it (``PyArray_NewFromDescr_int``).
"""

from __future__ import annotations

import sys
from gc import get_referents
from itertools import compress, repeat
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.untracked import MetArrays
from pytest_gpuleak.heap.interpreter import UNCOUNTED, c_function, getrefcount
from pytest_gpuleak.heap.library_types import extension_class
from pytest_gpuleak.heap.safe_access import loaded, loaded_class, loaded_modules
from pytest_gpuleak.model.source_files import is_installed

if TYPE_CHECKING:
    from collections.abc import Iterable


_CODES: Final = "?bBhHiIlLqQefdgFDGOSUVMm"
"""The characters of NumPy's own dtypes."""

_FEATURES: Final = 211
"""Place of ``PyArray_GetNDArrayCFeatureVersion`` in NumPy's C API, as `_HANDLER` (numpy/_core/code_generators/numpy_api.py)."""

_HANDLER: Final = 306
"""Place of ``PyDataMem_DefaultHandler``, of which the API has the address."""

_HAS_HANDLER: Final = 0xF
"""The first version of the API that has it: NumPy 1.22."""


class ArrayReferences:
    """Counts the references, once NumPy is imported."""

    def __init__(self) -> None:
        self._referred: list[Any] = []

    def counts(self) -> list[int]:
        """Return the number of references to each dtype and to the handler; empty where that cannot be told.

        Python 3.13 makes NumPy's dtypes immortal (PEP 683).
        """
        if not self._referred:
            dtype_class: Any = loaded_class("numpy", "dtype")
            if dtype_class is None:
                return []
            self._referred = [*map(dtype_class, _CODES), *_memory_handler()]
        counts = list(map(getrefcount, self._referred))
        return counts if max(counts) < UNCOUNTED else []


def _memory_handler() -> list[Any]:
    """Return NumPy's own allocator of arrays' memory; nothing where it is not known."""
    import ctypes  # only suites that import NumPy need it

    api = loaded("numpy._core._multiarray_umath", "_ARRAY_API") or loaded("numpy.core._multiarray_umath", "_ARRAY_API")
    if api is None:
        return []
    address = c_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(api, None)
    table = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))
    if ctypes.CFUNCTYPE(ctypes.c_uint)(table[_FEATURES])() < _HAS_HANDLER:
        return []
    handler = ctypes.cast(ctypes.cast(table[_HANDLER], ctypes.POINTER(ctypes.c_void_p))[0], ctypes.py_object)
    return [handler.value]


_STANDARD_LIBRARY: Final = sys.stdlib_module_names - {"__main__"}

_CONTAINERS: Final = (list, dict, tuple)

_CHUNK: Final = 2048
"""Objects that are looked into at once."""


def module_arrays() -> MetArrays:
    """Return the arrays in globals, or in lists, dicts and tuples there."""
    found = MetArrays({}, {})
    _add(get_referents(*(names for module, names in loaded_modules().items() if _may_be_users(module, names))), found)
    return found


def arrays_in(objects: list[object]) -> MetArrays:
    """Return the arrays in these objects, or in lists, dicts and tuples there."""
    found = MetArrays({}, {})
    for start in range(0, len(objects), _CHUNK):
        _add(get_referents(*objects[start : start + _CHUNK]), found)
    return found


def _add(values: list[Any], found: MetArrays) -> None:
    array_class: Any = extension_class("numpy", "ndarray")
    inner = get_referents(*(value for kind in _CONTAINERS for value in _of_type(values, kind)))
    arrays = [*_of_type(values, array_class), *_of_type(inner, array_class)]
    if arrays:
        from pytest_gpuleak.adapters.numpy.memory import Ndarrays  # takes milliseconds to load

        reader = Ndarrays()
        found.add(reader, arrays, reader.sizes(arrays, ()))


def _may_be_users(module: str, names: dict[str, Any]) -> bool:
    file = names.get("__file__")
    if module.partition(".")[0] in _STANDARD_LIBRARY:
        return False
    return not (type(file) is str and is_installed(file))


def _of_type(values: list[Any], kind: type) -> Iterable[Any]:
    return compress(values, map(is_, map(type, values), repeat(kind)))
