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
    """A place where a path ends, attached to the path's first object, whose `text` is how one writes it in Python.

    `hops` are the references that `text` covers, such as a module's dict; `module` defines the root, under the dotted
    `name` (else `file` may be known). Of roots at the same distance, that of the lowest `preference` is shown.
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
