"""Read ndarrays by their C class's descriptors: who owns their memory, how large it is, which file it maps."""

from __future__ import annotations

from pathlib import Path, PosixPath, WindowsPath
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.late_arrays import ArrayHandle
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.library_types import extension_class
from pytest_gpuleak.heap.safe_access import is_subclass
from pytest_gpuleak.heap.walk import is_map
from pytest_gpuleak.model.readings import DISK, ArrayReading

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_BASES: Final = 16
"""Bases that are followed. NumPy makes chains short: the base of a view of a view is the array that owns the memory."""

MAX_ELEMENTS: Final = 100_000
"""Elements of one array that are read. A column of a million strings is left out."""

_BUFFERS: Final = (bytes, bytearray)
"""Types that own the memory of the arrays that view them (``np.frombuffer``), whose size `len` tells."""

_PATHS: Final = (Path, PosixPath, WindowsPath)


def ndarray_class() -> Any:
    """Return the class of all arrays; None while numpy is not imported."""
    return extension_class("numpy", "ndarray")


def memory_of(array: Any, array_class: Any) -> tuple[Any, object]:
    """Return the last array along the bases, and the memory's owner: None at the end of a chain that is too long."""
    for _ in range(MAX_BASES):
        base = safe_access.slot(array, array_class, "base")
        if type(base) is memoryview:
            base = safe_access.slot(base, memoryview, "obj")
        if safe_access.in_package(type(base), "numpy") and not is_subclass(type(base), array_class):
            # `as_strided` puts an object of its own in between, which holds the array (numpy/lib/_stride_tricks_impl.py).
            base = (safe_access.instance_dict(base) or {}).get("base", base)
        if base is None:
            return array, array
        if not is_subclass(type(base), array_class):
            return array, base
        array = base
    return array, None


def owns_data(array: Any, array_class: Any) -> bool:
    """Tell whether an array frees its memory: not one over a pointer that C code has lent it."""
    flags: Any = safe_access.slot(array, array_class, "flags")
    return bool(getattr(flags, "owndata", False))


def is_buffer(owner: object) -> bool:
    """Tell whether an owner is a bytes-like object of Python's own."""
    return type(owner) in _BUFFERS


def size_of(last: Any, owner: object, array_class: Any) -> int:
    """Return the bytes that the owner of the memory holds, as far as known: at least those of the last array."""
    return len(owner) if is_buffer(owner) else int(array_class.nbytes.__get__(last))  # type: ignore[arg-type]


def read(array: Any, array_class: Any) -> ArrayReading | None:
    """Return an array's metadata; None if it has no memory."""
    last, owner = memory_of(array, array_class)
    shown = int(array_class.nbytes.__get__(array))
    held = size_of(last, owner, array_class)
    if owner is None or not held:
        return None
    mapped = is_map(type(owner))
    return ArrayReading(
        id(array),
        tuple(array_class.shape.__get__(array)),
        _dtype_name(array, array_class),
        DISK if mapped else "cpu",
        min(shown, held),
        id(owner),
        held,
        framework="numpy",
        file=_file_of(array, array_class) if mapped else "",
    )


def _dtype_name(array: Any, array_class: Any) -> str:
    """Return the name of the element type, or of its kind where the user made it."""
    dtype: Any = array_class.dtype.__get__(array)
    # A name is written in Python by numpy itself; a structured dtype's is long.
    name = dtype.name if safe_access.in_package(type(dtype), "numpy") and dtype.names is None else "structured"
    return safe_access.cut_name(str(name))


def _file_of(array: Any, array_class: Any) -> str:
    """Return the file that a `numpy.memmap`, or an array that views it, maps; empty if unknown."""
    for _ in range(MAX_BASES):
        named = (safe_access.instance_dict(array) or {}).get("filename")
        if type(named) is str:
            return named
        if type(named) in _PATHS:
            return str(named)
        array = safe_access.slot(array, array_class, "base")
        if array is None or not is_subclass(type(array), array_class):
            return ""
    return ""


def data_address(array: Any, array_class: Any) -> int:
    """Return the address of the first element."""
    return int(array_class.__array_interface__.__get__(array)["data"][0])


def hold(array: Any, array_class: Any) -> ArrayHandle:
    """Return a weak hold on the last array along the bases, which lives as long as the memory."""
    last, owner = memory_of(array, array_class)
    return ArrayHandle(id(owner), owner if is_map(type(owner)) else last)


def elements_of(array: Any, array_class: Any) -> Iterable[tuple[str, object]]:
    """Return the objects in an array, each with its place as Python writes it: ``[0, 1]``, or ``[0]['name']`` of a record."""
    dtype: Any = safe_access.slot(array, array_class, "dtype")
    if not getattr(dtype, "hasobject", False) or not 0 < int(array_class.size.__get__(array)) <= MAX_ELEMENTS:
        return ()
    shape: tuple[int, ...] = array_class.shape.__get__(array)
    places = _nested(array_class.tolist(array), len(shape))
    if dtype.kind == "O":
        return ((f"[{place}]", value) for place, value in places)
    return (part for place, value in places for part in _parts(value, dtype, f"[{place}]"))


def _nested(values: Any, depth: int, before: str = "") -> Iterable[tuple[str, object]]:
    if depth == 0:
        yield "()", values
        return
    for index, value in enumerate(values):
        if depth == 1:
            yield f"{before}{index}", value
        else:
            yield from _nested(value, depth - 1, f"{before}{index}, ")


def _parts(value: Any, dtype: Any, place: str) -> Iterable[tuple[str, object]]:
    """Return the objects in a record: a tuple with an item for each field, which may be a record too."""
    if dtype.kind == "O":
        yield place, value
    elif dtype.names is not None:
        for name, part in zip(dtype.names, value, strict=True):
            yield from _parts(part, dtype.fields[name][0], f"{place}[{name!r}]")
