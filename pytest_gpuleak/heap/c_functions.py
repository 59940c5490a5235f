"""Take functions of Python's C API as objects of our own.

An attribute of `ctypes.pythonapi` is one object for the whole process: argument types that are set on it change what the
tests call, and theirs what we call. Taken by index, each is another object.
"""

from __future__ import annotations

from typing import Any


def c_function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of the C API with these types. Raises ImportError or AttributeError where there is none (PyPy)."""
    import ctypes  # only suspects need it

    function = ctypes.pythonapi[name]
    function.restype, function.argtypes = result, arguments
    return function
