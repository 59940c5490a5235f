"""Tell which files of safetensors are mapped, without calling safetensors.

Its untracked objects add to their class's reference count, which is asked first: listing maps takes 0.5 ms.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from pytest_gpuleak.heap import safe_access

_PACKAGE: Final = "safetensors"
_NATIVE: Final = "safetensors._safetensors_rust"
_MAPS: Final = Path("/proc/self/maps")
_SUFFIX: Final = b".safetensors"
_PATH_FIELD: Final = 5
"""Index of the path in a line of the list: address, rights, offset, device, inode, path."""


def file_class() -> type | None:
    """Return the class of open files; None until safetensors is imported."""
    if _PACKAGE not in sys.modules:
        return None
    found = safe_access.loaded(_NATIVE, "safe_open")
    return found if type(found) is type else None


def opened_count() -> int:
    """Return a number that grows with each file that is opened; 0 until safetensors is imported."""
    found = file_class()
    return 0 if found is None else sys.getrefcount(found)


def mapped_files() -> dict[int, tuple[str, int]]:
    """Return the path and the bytes of each map of a file of safetensors, by its address; none where nothing tells."""
    found: dict[int, tuple[str, int]] = {}
    with suppress(OSError, ValueError):  # another system, or a line of another form
        for line in _MAPS.read_bytes().splitlines():
            if line.endswith(_SUFFIX):
                fields = line.split(maxsplit=_PATH_FIELD)
                start, end = (int(place, 16) for place in fields[0].split(b"-"))
                found[start] = fields[_PATH_FIELD].decode(errors="replace"), end - start
    return found
