"""Read ndarrays by their C class's descriptors: who owns their memory, how large it is, which file it maps."""

from __future__ import annotations

from pathlib import Path, PosixPath, WindowsPath
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.late import ArrayHandle
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.library_types import extension_class
from pytest_gpuleak.heap.walk import is_map
from pytest_gpuleak.model.readings import DISK, ArrayReading, MemoryRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_BASES: Final = 16
"""Bases that are followed. NumPy makes chains short: the base of a view of a view is the array that owns the memory."""

MAX_ELEMENTS: Final = 100_000
"""Elements of one array that are read. A column of a million strings is left out."""

_BUFFERS: Final = (bytes, bytearray)
"""Types that own the memory of the arrays that view them (``np.frombuffer``), whose size `len` tells."""

_PATHS: Final = (Path, PosixPath, WindowsPath)


class Ndarrays:
    """Reads arrays of the numpy that is imported now: those on the heap, see `UntrackedArrays`, and mapped files."""

    def __init__(self) -> None:
        self._class: Any = extension_class("numpy", "ndarray")

    def array_type(self) -> type | None:
        """See `UntrackedArrays`."""
        found: type | None = self._class
        return found

    def source(self, array: Any) -> tuple[Any, object]:
        """Return the last array along the bases, and the memory's owner: None at the end of a chain that is too long."""
        for _ in range(MAX_BASES):
            base = safe_access.slot(array, self._class, "base")
            if type(base) is memoryview:
                base = safe_access.slot(base, memoryview, "obj")
            if safe_access.in_package(type(base), "numpy") and not safe_access.is_a(base, self._class):
                # `as_strided` puts an object of its own in between, which holds the array (numpy/lib/_stride_tricks_impl.py).
                base = (safe_access.instance_dict(base) or {}).get("base", base)
            if base is None:
                return array, array
            if not safe_access.is_a(base, self._class):
                return array, base
            array = base
        return array, None

    def sizes(self, arrays: Sequence[Any], others: Sequence[type]) -> list[tuple[int, int]]:
        """See `UntrackedArrays`."""
        found = list(zip(map(id, arrays), map(self._class.nbytes.__get__, arrays), strict=True))
        for index, base in enumerate(map(self._class.base.__get__, arrays)):
            if base is not None:
                last, owner = self.source(arrays[index])
                found[index] = (0, 0) if _is_elsewhere(owner, others) else (id(owner), self._size_of(last, owner))
        return found

    def read(self, array: Any, others: Sequence[type]) -> ArrayReading | None:
        """See `UntrackedArrays`."""
        last, owner = self.source(array)
        # C code may have lent a pointer to an array that does not free it.
        is_lent = owner is last and not getattr(safe_access.slot(last, self._class, "flags"), "owndata", False)
        return None if is_lent or _is_elsewhere(owner, others) else self.describe(array)

    def describe(self, array: Any) -> ArrayReading | None:
        """Return an array's metadata; None if it has no memory."""
        last, owner = self.source(array)
        held = self._size_of(last, owner)
        if owner is None or not held:
            return None
        mapped = is_map(type(owner))
        return ArrayReading(
            id(array),
            tuple(self._class.shape.__get__(array)),
            self._dtype_name(array),
            DISK if mapped else "cpu",
            min(int(self._class.nbytes.__get__(array)), held),
            id(owner),
            held,
            framework="numpy",
            file=self._file_of(array) if mapped else "",
        )

    def hold(self, array: Any) -> ArrayHandle:
        """Return a weak hold on the last array along the bases, which lives as long as the memory."""
        last, owner = self.source(array)
        return ArrayHandle(id(owner), owner if is_map(type(owner)) else last)

    def allocated(self, array: Any) -> object:
        """See `UntrackedArrays`."""
        last, owner = self.source(array)
        return owner if type(owner) in _BUFFERS else last

    def memory(self, array: Any) -> MemoryRange:
        """See `UntrackedArrays`."""
        last, _ = self.source(array)
        start = self._class.__array_interface__.__get__(last)["data"][0]
        return MemoryRange(int(start), int(self._class.nbytes.__get__(last)))

    def elements(self, array: Any) -> list[object]:
        """See `UntrackedArrays`."""
        return [value for _, value in self.placed_elements(array)]

    def placed_elements(self, array: Any) -> Iterable[tuple[str, object]]:
        """Return the objects in an array, each with its place as Python writes it: ``[0, 1]``, or ``[0]['name']`` of a record."""
        dtype: Any = safe_access.slot(array, self._class, "dtype")
        if not getattr(dtype, "hasobject", False) or not 0 < int(self._class.size.__get__(array)) <= MAX_ELEMENTS:
            return ()
        places = _nested(self._class.tolist(array), len(self._class.shape.__get__(array)))
        return (part for place, value in places for part in _parts(value, dtype, f"[{place}]"))

    def _size_of(self, last: Any, owner: object) -> int:
        """Return the bytes that the owner of the memory holds, as far as known: at least those of the last array."""
        return len(owner) if type(owner) in _BUFFERS else int(self._class.nbytes.__get__(last))  # type: ignore[arg-type]

    def _dtype_name(self, array: Any) -> str:
        """Return the name of the element type, or of its kind where the user made it."""
        dtype: Any = self._class.dtype.__get__(array)
        # A name is written in Python by numpy itself; a structured dtype's is long.
        name = dtype.name if safe_access.in_package(type(dtype), "numpy") and dtype.names is None else "structured"
        return safe_access.cut_name(str(name))

    def _file_of(self, array: Any) -> str:
        """Return the file that a `numpy.memmap`, or an array that views it, maps; empty if unknown."""
        for _ in range(MAX_BASES):
            named = (safe_access.instance_dict(array) or {}).get("filename")
            if type(named) is str or type(named) in _PATHS:
                return str(named)
            array = safe_access.slot(array, self._class, "base")
            if not safe_access.is_a(array, self._class):
                return ""
        return ""


def _is_elsewhere(owner: object, others: Sequence[type]) -> bool:
    """Tell whether memory is not the heap's: nobody's, a mapped file's, or an array's that its framework counts."""
    return owner is None or is_map(type(owner)) or any(safe_access.is_a(owner, other) for other in others)


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
