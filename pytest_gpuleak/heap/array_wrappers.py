"""Look through NumPy's objects that hold arrays and that the collector cannot look into (`gc.get_referents`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.library_types import extension_class

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLACES: Final = (("flatiter", "base"), ("nditer", "operands"), ("broadcast", "iters"), ("void", "base"))
"""Names of the classes, and of the attribute that returns what an object of the class holds: an object, or a tuple."""


class ArrayWrappers:
    """The classes of such objects that the imported numpy has; none without numpy. One instance a walk."""

    def __init__(self) -> None:
        found = ((extension_class("numpy", name), place) for name, place in _PLACES)
        self._places = [(kind, place) for kind, place in found if kind is not None]
        record = extension_class("numpy", "record")
        self.exact_types: Sequence[type] = [*(kind for kind, _ in self._places), *([] if record is None else [record])]
        """The classes themselves, for a walk that compares types alone."""

    def is_wrapper_type(self, kind: type) -> bool:
        """Tell whether objects of a type may hold arrays unseen."""
        return any(safe_access.is_subclass(kind, base) for base, _ in self._places)

    def inside(self, value: object) -> list[tuple[str, object]]:
        """Return what an object holds, each with the way to it as Python writes it; nothing for other objects."""
        for kind, place in self._places:
            if safe_access.is_a(value, kind):
                held = safe_access.slot(value, kind, place)  # None: a closed `nditer`, a scalar of its own memory
                parts = [(f"[{index}]", one) for index, one in enumerate(held)] if type(held) is tuple else [("", held)]
                return [(f".{place}{index}", part) for index, part in parts if part is not None]
        return []
