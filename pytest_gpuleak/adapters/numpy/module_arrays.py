"""Note, in a millisecond, the arrays that are older than a test: those of users' modules, and of a fixture's setup."""

from __future__ import annotations

import sys
from gc import get_referents
from itertools import compress, repeat
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.untracked import MetArrays
from pytest_gpuleak.heap.library_types import extension_class
from pytest_gpuleak.heap.safe_access import loaded_modules
from pytest_gpuleak.model.source_files import is_installed

if TYPE_CHECKING:
    from collections.abc import Iterable

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
