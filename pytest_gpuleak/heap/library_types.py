"""Find classes of C extensions, whatever a test has done to `sys.modules`, and look through NumPy's that hold arrays unseen."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.safe_access import is_a, loaded_module, module_dict, read_module, read_name, subclasses

if TYPE_CHECKING:
    from collections.abc import Sequence


_ABSENT: dict[tuple[str, str], int] = {}
"""Classes that no loaded module has brought, by the number of modules at that time."""


def extension_class(module: str, name: str) -> type | None:
    """Return the class with this module and name that derives from `object` alone, or None."""
    loaded = loaded_module(module)
    found = (module_dict(loaded) or {}).get(name)
    if is_a(found, type) and _says(found, module, name):  # type: ignore[arg-type]
        return found
    package = module.partition(".")[0]
    # Listing all classes takes 0.2 to 2 ms. A package that was ever imported has left its folder here.
    folders = ("/" + package, "\\" + package)
    if not any(type(path) is str and path.endswith(folders) for path in sys.path_importer_cache):
        return None
    if loaded is None and _ABSENT.get((module, name)) == len(sys.modules):
        return None
    for kind in subclasses(object):
        if _says(kind, module, name):
            return kind
    if loaded is None:
        _ABSENT[module, name] = len(sys.modules)
    return None


def _says(kind: type, module: str, name: str) -> bool:
    try:
        return bool(read_name(kind) == name and read_module(kind) == module)
    except AttributeError:  # a class whose namespace lost its __module__
        return False


_PLACES: Final = (("flatiter", "base"), ("nditer", "operands"), ("broadcast", "iters"), ("void", "base"))
"""Names of the classes, and of the attribute that returns what an object of the class holds: an object, or a tuple."""


class ArrayWrappers:
    """The classes of objects that hold arrays and that `gc.get_referents` cannot look into, of the imported numpy; none without. One instance a walk."""

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
