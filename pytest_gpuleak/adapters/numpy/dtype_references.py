"""Count the references to NumPy's own dtypes: an array has one, so that a run's new arrays show in a microsecond.

No array shows whose dtype is made anew: text, dates with a unit, another byte order (NumPy's ``PyArray_DescrFromType``
returns the same object for each of the others).
"""

from __future__ import annotations

from typing import Any, Final

from pytest_gpuleak.heap.reference_counts import UNCOUNTED, getrefcount
from pytest_gpuleak.heap.safe_access import loaded_class

_CODES: Final = "?bBhHiIlLqQefdgFDGOSUVMm"
"""The characters of NumPy's own dtypes."""


class DtypeReferences:
    """Counts the references, once NumPy is imported."""

    def __init__(self) -> None:
        self._dtypes: list[Any] = []

    def counts(self) -> list[int]:
        """Return the number of references to each dtype; empty where that cannot be told.

        Python 3.13 makes NumPy's dtypes immortal (PEP 683).
        """
        if not self._dtypes:
            dtype_class: Any = loaded_class("numpy", "dtype")
            if dtype_class is None:
                return []
            self._dtypes = [dtype_class(code) for code in _CODES]
        counts = list(map(getrefcount, self._dtypes))
        return counts if max(counts) < UNCOUNTED else []
