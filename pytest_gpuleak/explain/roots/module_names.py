"""Know loaded modules by the ids of their namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.frames import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class ModuleNames(NamedTuple):
    """The loaded modules.

    Attributes:
        names: by the ids of their namespaces, without the plugin's. Of two names, the one that the module gives itself.
        plugin: the ids of the namespaces of the plugin's modules.
    """

    names: Mapping[int, str]
    plugin: Collection[int]


class _Reading:
    """The last reading of `sys.modules`: names and ids, no module."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._identities: list[int] = []
        self._found = ModuleNames({}, ())

    def read(self) -> ModuleNames:
        loaded = safe_access.loaded_modules()
        names, identities = list(loaded), list(map(id, loaded.values()))
        if names != self._names or identities != self._identities:
            self._found = _sorted_out(loaded)
            self._names, self._identities = names, identities
        return self._found


def _sorted_out(loaded: Mapping[str, dict[str, object]]) -> ModuleNames:
    names: dict[int, str] = {}
    plugin: set[int] = set()
    for name, namespace in loaded.items():
        own_name = safe_access.plain_text(namespace.get("__name__"))
        if safe_access.is_within(name, PACKAGE) or safe_access.is_within(own_name, PACKAGE):
            plugin.add(id(namespace))
        elif id(namespace) not in names or name == own_name:
            names[id(namespace)] = name
    return ModuleNames(names, plugin)


_READING = _Reading()


def module_names() -> ModuleNames:
    """Return the loaded modules; sorted out again only if one was loaded, removed or replaced."""
    return _READING.read()
