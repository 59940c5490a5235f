"""Tell where the memory of an array is, by the buffer protocol."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Final

from pytest_gpuleak.heap.interpreter import c_function
from pytest_gpuleak.model.readings import MemoryRange

_FULL_READ_ONLY: Final = 0x011C
"""A request for memory of any layout, which need not be writable (Include/cpython/object.h, PyBUF_FULL_RO)."""


class _Buffer(ctypes.Structure):
    """``Py_buffer``, the same in all versions of Python (Include/cpython/object.h)."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def memory_of(array: object) -> MemoryRange | None:
    """Return address and bytes of an array's elements; None where the array tells none: Python has no bfloat16."""
    buffer = _Buffer()
    get, release = _functions()
    try:
        get(ctypes.py_object(array), ctypes.byref(buffer), _FULL_READ_ONLY)  # without a look at its `__class__`
    except Exception:  # noqa: BLE001 - whatever the array's own code raises
        return None
    try:
        return MemoryRange(buffer.buf, buffer.len) if buffer.buf else None
    finally:
        release(ctypes.byref(buffer))


@functools.cache
def _functions() -> tuple[Any, Any]:
    pointer = ctypes.POINTER(_Buffer)
    get = c_function("PyObject_GetBuffer", ctypes.c_int, ctypes.py_object, pointer, ctypes.c_int)
    return get, c_function("PyBuffer_Release", None, pointer)
