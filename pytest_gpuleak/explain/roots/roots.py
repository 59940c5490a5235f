"""Recognise roots. The search uses a worse rank (`root.RANKS`) only where there is no better root."""

from __future__ import annotations

import contextvars
import sys
import types
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.registry import own_cache_packages
from pytest_gpuleak.explain.roots.interpreter import HandedOut, registry_root
from pytest_gpuleak.explain.roots.root import (
    CACHED,
    EDITABLE,
    EXCEPTION,
    LAST_ERROR,
    RANKS,
    RUNNING,
    Root,
    module_names,
)
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.frames import (
    PACKAGE,
    belongs_to_plugin,
    live_threads,
    local_variables,
    name_of_thread,
    running_frames,
)
from pytest_gpuleak.heap.referrers import untouchable_modules

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pytest_gpuleak.explain.definitions import Places
    from pytest_gpuleak.heap.frames import RunningFrame
    from pytest_gpuleak.model.findings import HolderKind

__all__ = ["CACHED", "EDITABLE", "EXCEPTION", "LAST_ERROR", "RANKS", "RUNNING", "Root", "Roots"]

_LAST_ERROR_NAMES: Final = ("last_exc", "last_value", "last_traceback", "last_type")
"""Globals of `sys` that pin the frames of the last failed test (pytest-dev/pytest#2798)."""

_BOOKKEEPING: Final = (("threading", "_active"), ("threading", "_limbo"), ("sys", "modules"))
"""Globals by which the interpreter finds live things. The running thread is the better answer."""


_CACHE_PACKAGES: Final = own_cache_packages()

MAX_NAMES: Final = 100
"""Names of one module for the same object that are considered."""

MAX_PLACES: Final = 16
"""Running frames that are recorded for one object. A recursion passes the same one to each of its frames."""

_VIEWS: Final = ("_pytest._code.code.Traceback", "_pytest._code.code.TracebackEntry")
"""Types that show a traceback which another object holds. No reader wants to be led through them."""

_PLAIN: Final = frozenset({id(dict), id(list), id(tuple), id(set), id(frozenset), id(types.CellType)})
"""Types of most objects on a heap, tested first: they are no roots, except for the interpreter's registries."""


class Roots:
    """Recognises roots. It refers to namespaces and running frames: drop it after the search."""

    def __init__(self, ignore: set[int]) -> None:
        self.ignored = ignore
        self._modules, self._plugin = module_names()
        self._stand_ins = _stand_ins()
        self._bookkeeping = {id(safe_access.loaded(*place)) for place in _BOOKKEEPING}
        self._bookkeeping.update(untouchable_modules())
        self._bookkeeping.discard(id(None))
        self.frames: list[RunningFrame] = running_frames(ignore)
        self._locals: dict[int, list[tuple[RunningFrame, str]]] | None = None
        self._handed_out: HandedOut | None = None
        self._on_stack = {id(running.frame) for running in running_frames(())}
        self._threads = set(map(id, live_threads()))
        self._fixture = safe_access.loaded_class("_pytest.fixtures", "FixtureDef")
        self._node = safe_access.loaded_class("_pytest.nodes", "Node")
        self._thread = safe_access.loaded_class("threading", "Thread")
        # By the ids of types, which cannot be freed while the collector is paused.
        self._excluded_kinds: dict[int, bool] = {}
        self._special_kinds: dict[int, bool] = {}

    def excluded(self, container: object) -> bool:  # noqa: PLR0911 - a return for each kind of container
        """Tell whether `container` belongs to the plugin, or is a frame on a stack, which `local_roots` reads."""
        identity = id(container)
        if identity in self.ignored or identity in self._bookkeeping or identity in self._plugin:
            return True
        kind = type(container)
        if id(kind) in _PLAIN:
            return False
        if kind is types.FrameType:
            return identity in self._on_stack or belongs_to_plugin(container.f_globals)  # type: ignore[attr-defined]
        if kind is types.FunctionType:
            return belongs_to_plugin(container.__globals__)  # type: ignore[attr-defined]
        if kind is types.GeneratorType:  # the plugin's own hook wrapper
            frame = container.gi_frame  # type: ignore[attr-defined]
            return frame is not None and belongs_to_plugin(frame.f_globals)
        if kind is type:
            return safe_access.in_package(container, PACKAGE)  # type: ignore[arg-type]
        if id(kind) not in self._excluded_kinds:
            is_own = safe_access.in_package(kind, PACKAGE)
            self._excluded_kinds[id(kind)] = is_own or safe_access.class_label(kind) in _VIEWS
        return self._excluded_kinds[id(kind)]

    def is_common(self, container: object) -> bool:
        """Tell whether `container` is a plain built-in container and no module's dict."""
        return id(type(container)) in _PLAIN and id(container) not in self._modules

    def is_namespace(self, container: object) -> bool:
        """Tell whether `container` is the dict of a module in `sys.modules`."""
        return id(container) in self._modules

    def global_roots(self, namespace: Any, wanted: Collection[int]) -> Iterable[tuple[int, Root]]:
        """Return pairs of id and root for the values of a module's dict whose ids are `wanted`."""
        module = self._modules[id(namespace)]
        found: list[tuple[int, Root]] = []
        counts: dict[int, int] = {}
        for name, value in list(dict.items(namespace)):
            identity = id(value)
            if identity in wanted and type(name) is str:
                counts[identity] = counts.get(identity, 0) + 1
                if counts[identity] <= MAX_NAMES:
                    found.append((identity, _global(module, name)))
        return found

    def local_roots(self, wanted: set[int]) -> Iterable[tuple[int, Root]]:
        """Return pairs of id and root of what no container shows: frames' locals, and what the interpreter keeps."""
        if self._handed_out is None or self._locals is None:
            self._handed_out, self._locals = HandedOut(), self._places_of_locals()
        found = self._handed_out.roots(wanted)
        for identity in self._locals.keys() & wanted:
            if identity in self.ignored:
                continue
            for running, name in self._locals[identity]:
                kind: HolderKind = "frame" if running.thread is None else "thread"
                text = f"{running.describe()}: local {safe_access.cut_name(name)!r}"
                file, line = running.frame.f_code.co_filename, running.frame.f_lineno
                found.append((identity, Root(RUNNING, kind, text, hops=1, file=file, line=line)))
        return found

    def _places_of_locals(self) -> dict[int, list[tuple[RunningFrame, str]]]:
        places: dict[int, list[tuple[RunningFrame, str]]] = {}
        for running in self.frames:
            if id(running.frame.f_locals) in self._modules:
                continue  # a module that is being imported: its locals are its globals
            for name, value in local_variables(running.frame):
                known = places.setdefault(id(value), [])
                if len(known) < MAX_PLACES:
                    known.append((running, name))
        return places

    def local_values(self) -> tuple[object, ...]:
        """Return the values of all running frames' locals."""
        return tuple([value for running in self.frames for _, value in local_variables(running.frame)])

    def root_of(self, value: object) -> Root | None:  # noqa: C901, PLR0911 - a return for each kind of root
        """Return the root that `value` itself is, or None."""
        kind = type(value)
        if id(kind) in _PLAIN:
            return registry_root(value)
        if id(kind) not in self._special_kinds:
            self._special_kinds[id(kind)] = self._is_special(kind)
        if not self._special_kinds[id(kind)]:
            return self._stand_in(value)
        if safe_access.is_subclass(kind, type):
            return _class_root(value)  # type: ignore[arg-type]
        if kind is safe_access.LRU_WRAPPER:
            return _cache_root(value)
        if self._fixture is not None and safe_access.is_subclass(kind, self._fixture):
            return Root(EDITABLE, "fixture", f"fixture {_attribute(value, 'argname')!r}", preference=(3, ""))
        if self._node is not None and safe_access.is_subclass(kind, self._node):
            return Root(EDITABLE, "fixture", f"pytest item {_attribute(value, 'name')!r}", preference=(4, ""))
        if id(value) in self._threads:
            return Root(RUNNING, "thread", f"thread {name_of_thread(value)!r}", preference=(1, ""))
        if safe_access.is_subclass(kind, types.ModuleType):
            return self._module_root(value)
        if safe_access.is_subclass(kind, BaseException):
            return Root(EXCEPTION, "traceback", f"exception {safe_access.class_name(kind)}")
        if kind is types.TracebackType:
            # Two hops more, since the exception that has it is the better answer.
            return Root(EXCEPTION, "traceback", "traceback", hops=2)
        return self._stand_in(value) or registry_root(value)

    def _is_special(self, kind: type) -> bool:
        bases = (type, safe_access.LRU_WRAPPER, self._fixture, self._node, self._thread, types.ModuleType, BaseException,
                 types.TracebackType, contextvars.Context)  # fmt: skip
        return any(base is not None and safe_access.is_subclass(kind, base) for base in bases)

    def _stand_in(self, value: object) -> Root | None:
        name = self._stand_ins.get(id(value))
        if name is None:
            return None
        text = f"sys.modules[{safe_access.cut_name(name)!r}]"
        return Root(EDITABLE, "module", text, module=name, preference=(1, name))

    def _module_root(self, module: object) -> Root | None:
        """Return the root for an extension module's state: less preferred than a global that has the same content."""
        namespace = safe_access.module_dict(module)
        name = None if namespace is None else self._modules.get(id(namespace))
        return None if name is None else Root(_rank_in(name), "module", name, hops=1, module=name, preference=(5, name))


def _global(module: str, name: str) -> Root:
    if module == "sys" and name in _LAST_ERROR_NAMES:
        return Root(LAST_ERROR, "traceback", f"sys.{name}", hops=1, preference=(_LAST_ERROR_NAMES.index(name), name))
    place = f".{name}" if safe_access.is_attribute_name(name) else f".__dict__[{safe_access.key_text(name)}]"
    text = f"{safe_access.cut_name(module)}{place}"
    preference = (_remoteness(module, name), text)
    return Root(_rank_in(module), "module", text, hops=1, module=module, name=name, preference=preference)


def where_defined(roots: Mapping[int, Root], places: Places) -> dict[int, Root]:
    """Return, for globals whose module has only imported them, the root in the module whose source defines them, by id."""
    imported = {
        identity: root
        for identity, root in roots.items()
        if root.kind == "module" and root.name is not None and places.of_name(root.module, root.name)[1] is None
    }
    modules = module_names().names
    found: dict[int, Root] = {}
    for namespace in safe_access.loaded_modules().values() if imported else ():
        for name, value in list(dict.items(namespace)):
            root = imported.get(id(value))
            if root is None or type(name) is not str or id(namespace) not in modules:
                continue
            other = _global(modules[id(namespace)], name)
            known = found.get(id(value), other)
            if other.rank == root.rank and places.of_name(other.module, name)[1] is not None:
                found[id(value)] = min(known, other, key=lambda one: one.preference)
    return found


def _rank_in(module: str | None) -> int:
    return CACHED if any(safe_access.is_within(module, package) for package in _CACHE_PACKAGES) else EDITABLE


def _remoteness(module: str, name: str) -> int:
    """Return how far a global is from the module that a user would edit, 0 at best.

    A test has imported the name, and behind a public name may be a private one (`_warnings.filters`).
    """
    last = module.rpartition(".")[2]
    if last.startswith("test_") or last.endswith("_test") or last == "conftest" or module == "__main__":
        return 2
    return int(name.startswith("_") or any(part.startswith("_") for part in module.split(".")))


def _stand_ins() -> dict[int, str]:
    found: dict[int, str] = {}
    modules: dict[Any, Any] = sys.modules
    for name, module in list(dict.items(modules)):
        is_module = type(module) is types.ModuleType or safe_access.module_dict(module) is not None
        if type(name) is str and module is not None and not is_module:
            found.setdefault(id(module), name)
    return found


def _class_root(cls: type) -> Root | None:
    module, qualname = safe_access.class_module(cls), safe_access.class_qualname(cls)
    if safe_access.resolve(module, qualname) is not cls:
        return None
    return _definition_root("class", safe_access.class_label(cls), module, qualname)


def _definition_root(kind: HolderKind, text: str, module: str | None, qualname: str | None) -> Root:
    preference = (2, safe_access.cut_name(qualname or ""))
    return Root(_rank_in(module), kind, text, module=module, name=qualname, preference=preference)


def _cache_root(wrapper: object) -> Root | None:
    namespace = safe_access.instance_dict(wrapper)
    if namespace is None:
        return None
    module, qualname = (safe_access.plain_text(namespace.get(name)) for name in ("__module__", "__qualname__"))
    found = safe_access.resolve(module, qualname)
    if type(found) is staticmethod or type(found) is classmethod:
        found = found.__func__
    if found is not wrapper:
        return None
    text = f"{safe_access.cut_name(module or '')}.{safe_access.cut_name(qualname or '')}"
    return _definition_root("cache", text, module, qualname)


def _attribute(value: object, name: str) -> str:
    namespace = safe_access.instance_dict(value)
    found = None if namespace is None else safe_access.plain_text(namespace.get(name))
    if found is None:
        found = safe_access.plain_text(dict(safe_access.members(value)).get(name))
    return safe_access.cut_name(found or "?")
