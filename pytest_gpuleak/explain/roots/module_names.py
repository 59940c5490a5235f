"""Know loaded modules by the ids of their namespaces."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.frames import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


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
