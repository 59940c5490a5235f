"""The data of a root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import HolderKind

EDITABLE: Final = 1
RUNNING: Final = 2
LAST_ERROR: Final = 3
CACHED: Final = 4
EXCEPTION: Final = 5
RANKS: Final = (EDITABLE, RUNNING, LAST_ERROR, CACHED, EXCEPTION)
"""Best first: what stays until edited; what runs; what the last error pinned; a framework's caches; other errors."""
LASTING: Final = (EDITABLE, CACHED)
"""Ranks of roots that outlive a test under a name."""


@dataclass(frozen=True)
class Root:
    """A place where a path ends. It is attached to the path's first object.

    Attributes:
        text: how one writes the path's first object in Python.
        hops: references that `text` covers between the root and that object, such as a module's dict.
        module: the module whose source defines the root, where one does, under the dotted `name`.
        preference: of several roots at the same distance, the lowest is shown.
        file: the source file, where it is known without `module`.
    """

    rank: int
    kind: HolderKind
    text: str
    hops: int = 0
    module: str | None = None
    name: str | None = None
    preference: tuple[int, str] = (0, "")
    file: str | None = None
    line: int | None = None
