"""The data of a root, and the names of loaded modules by the ids of their namespaces."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.frames import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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


class ModuleNames(NamedTuple):
    """The loaded modules: names by the ids of their namespaces, and the ids of the plugin's own namespaces."""

    names: Mapping[int, str]
    plugin: Collection[int]


def module_names() -> ModuleNames:
    """Return the loaded modules; sorted out again only if one was loaded, removed or replaced."""
    loaded = safe_access.loaded_modules()
    return _sorted_out(tuple(loaded), tuple(map(id, loaded.values())))


@functools.lru_cache(maxsize=1)
def _sorted_out(_names: tuple[str, ...], _namespaces: tuple[int, ...]) -> ModuleNames:
    names: dict[int, str] = {}
    plugin: set[int] = set()
    for name, namespace in safe_access.loaded_modules().items():
        own_name = safe_access.plain_text(namespace.get("__name__"))
        if safe_access.is_within(name, PACKAGE) or safe_access.is_within(own_name, PACKAGE):
            plugin.add(id(namespace))
        elif id(namespace) not in names or name == own_name:
            names[id(namespace)] = name
    return ModuleNames(names, plugin)
