"""What the interpreter alone tells: counts of references, and functions of its C API as objects of our own.

From Python 3.14 on, a variable that is passed as an argument lends its reference: neither the argument nor the called
function's parameter adds one (``LOAD_FAST_BORROW``, Python/flowgraph.c).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable


UNCOUNTED: Final = 1 << 27
"""Reference counts from here up are no counts, but constants.

Immortal objects have one (PEP 683, Include/refcount.h: from ``5 << 28`` up on 32 bits), and objects that free-threaded
builds count late (Include/internal/pycore_object_deferred.h, ``_Py_REF_DEFERRED``).
"""


def _uncounted(_: object) -> int:
    return UNCOUNTED


getrefcount: Final[Callable[[object], int]] = getattr(sys, "getrefcount", _uncounted)
"""`sys.getrefcount`, or what says that there is no count (PyPy counts no references)."""


def _argument_references() -> int:
    kept = [object()]
    value = kept[0]
    count = getrefcount(value)
    return 1 if count >= UNCOUNTED else count - 2


def _of_parameter(value: object) -> int:
    return getrefcount(value)


def _parameter_references() -> int:
    kept = [object()]
    value = kept[0]
    return _of_parameter(value) - 2 - ARGUMENT_REFERENCES


ARGUMENT_REFERENCES: Final = _argument_references()
"""References that the argument of ``getrefcount(variable)`` adds: one up to Python 3.13, none from 3.14 on."""

LOOKUP_REFERENCES: Final = 2 + ARGUMENT_REFERENCES
"""References that counting an object of a list or dict adds: the container's, a variable's, the argument's."""

LENDS_ARGUMENTS: Final = _parameter_references() <= 0
"""Whether a parameter may refer to its value without being counted, while the caller's variable refers to it."""

TEMPORARY_REFERENCES: Final = _of_parameter(object())
"""What ``getrefcount(parameter)`` returns where the call alone, or its caller's stack, refers to what was passed."""


def c_function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of the C API with these types. Raises ImportError or AttributeError where there is none (PyPy).

    An attribute of `ctypes.pythonapi` is one object for the whole process: argument types that are set on it change what the
    tests call, and theirs what we call. Taken by index, each is another object.
    """
    import ctypes  # only suspects need it

    function = ctypes.pythonapi[name]
    function.restype, function.argtypes = result, arguments
    return function
