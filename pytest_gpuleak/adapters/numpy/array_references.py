"""Count the references that arrays have to NumPy's own objects, so that a run's new arrays show in a microsecond.

Each array refers to its dtype (NumPy's ``PyArray_DescrFromType`` returns the same object for each type of number), and one
that owns its memory, of any dtype, to the handler that has allocated it (``PyArray_NewFromDescr_int``).
"""

from __future__ import annotations

from typing import Any, Final

from pytest_gpuleak.heap.c_functions import c_function
from pytest_gpuleak.heap.reference_counts import UNCOUNTED, getrefcount
from pytest_gpuleak.heap.safe_access import loaded, loaded_class

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
