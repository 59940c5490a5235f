"""Roots that the interpreter tells on request: signal handlers, profile and trace functions, contexts, `atexit`."""

from __future__ import annotations

import contextvars
import dataclasses
import sys
import types
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.definitions import Places
from pytest_gpuleak.explain.roots.library_names import AT_EXIT, callback_name
from pytest_gpuleak.explain.roots.root import EDITABLE, EXCEPTION, Root
from pytest_gpuleak.heap import safe_access
from pytest_gpuleak.heap.async_exceptions import clear_mark
from pytest_gpuleak.heap.lost_signals import unraisable_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuleak.model.findings import HolderKind

_CODEC_ERRORS: Final = "strict"
"""The first of the error handlers that the interpreter registers itself (Python/codecs.c)."""


class HandedOut:
    """Objects that the interpreter keeps and returns on request; requested once a search."""

    def __init__(self) -> None:
        self._roots: dict[int, list[Root]] = {}
        for value, root in _handed_out():
            if value is not None:
                self._roots.setdefault(id(value), []).append(root)
        self._variables: dict[int, list[tuple[int, str]]] = {}  # not the variables, to keep no user objects
        for variable, value in contextvars.copy_context().items():
            self._variables.setdefault(id(value), []).append((id(variable), variable.name))
        self._names: dict[int, tuple[str, str]] | None = None
        self._places = Places()

    def roots(self, wanted: set[int]) -> list[tuple[int, Root]]:
        """Return the interpreter's roots of the objects whose ids are `wanted`: pairs of id and root."""
        found = [(identity, root) for identity in self._roots.keys() & wanted for root in self._roots[identity]]
        for identity in self._variables.keys() & wanted:
            for variable, own_name in self._variables[identity]:
                found.append((identity, self._root_of_variable(variable, own_name)))
        return found

    def _root_of_variable(self, variable: int, own_name: str) -> Root:
        if self._names is None:
            self._names = _names_of_variables()
        if variable not in self._names:
            return _kept(f"<ContextVar {safe_access.cut_name(own_name)!r}>.get()")
        module, name = self._names[variable]
        file, line = self._places.of_name(module, name)
        return dataclasses.replace(_kept(f"{safe_access.cut_name(module)}.{name}.get()"), file=file, line=line)


def _kept(text: str, kind: HolderKind = "module") -> Root:
    return Root(EDITABLE, kind, text, hops=1, preference=(2, text))


def registry_root(container: object) -> Root | None:
    """Return the root of an interpreter's registry, recognised by its permanent entries; else None."""
    if type(container) is dict:
        for name, handler in dict.items(container):  # the first item alone
            if type(name) is str and name == _CODEC_ERRORS and handler is safe_access.loaded("codecs", "strict_errors"):
                return _kept("codecs.register_error")
            break
    elif type(container) is list:
        first = list.__getitem__(container, 0) if list.__len__(container) else None
        if type(first) is types.FunctionType and first is safe_access.loaded("encodings", "search_function"):
            return _kept("codec search functions (codecs.register)")
    elif type(container) is contextvars.Context:
        # At worst some thread's state: the collector sees all other holders of a context.
        return Root(EXCEPTION, "thread", "a thread's context", hops=2)
    return None


def _handed_out() -> Iterator[tuple[object, Root]]:
    namespace = safe_access.module_dict(safe_access.loaded_module("_signal"))
    read = None if namespace is None else namespace.get("getsignal")
    if namespace is not None and read is not None:
        for name in sorted(namespace):
            number = namespace[name]
            if name.startswith("SIG") and not name.startswith("SIG_") and type(number) is int:
                try:
                    yield read(number), _kept(f"signal.getsignal(signal.{name})")
                except ValueError:  # a number that this system does not have
                    continue
    hooks = sys.get_asyncgen_hooks()
    yield sys.getprofile(), _kept("sys.getprofile()")
    yield sys.gettrace(), _kept("sys.gettrace()")
    yield hooks.firstiter, _kept("sys.get_asyncgen_hooks().firstiter")
    yield hooks.finalizer, _kept("sys.get_asyncgen_hooks().finalizer")
    yield unraisable_hook(), _kept("sys.unraisablehook")
    for function in exit_callbacks():
        yield function, _kept(f"{AT_EXIT}{callback_name(function)}", "native")


def _names_of_variables() -> dict[int, tuple[str, str]]:
    names: dict[int, tuple[str, str]] = {}
    for private in (False, True):
        for module, namespace in safe_access.loaded_modules().items():
            if module.startswith("_") is not private:
                continue
            for name, value in list(dict.items(namespace)):
                if type(value) is contextvars.ContextVar and safe_access.is_attribute_name(name):
                    names.setdefault(id(value), (module, name))
    return names


class _UserCodeError(Exception):
    """Ends a comparison that would run user code."""


class _Probe:
    """Is equal to nothing, and records what it is compared with. A function's own ``__eq__`` is user code: see `_guard`."""

    __slots__ = ("met",)
    __hash__ = None  # type: ignore[assignment]  # never a key

    def __init__(self) -> None:
        self.met: list[object] = []

    def __eq__(self, other: object) -> bool:
        # The interpreter drops a profile function that has raised, and the error of a descriptor that gives an `__eq__`
        # is not passed on (Objects/typeobject.c, slot_tp_richcompare): the next comparison would run unguarded.
        if sys.getprofile() is not _guard:
            sys.setprofile(_guard)
        self.met.append(other)
        return False


def _guard(frame: types.FrameType, event: str, _: object) -> None:
    if event == "call" and frame.f_code is not _ALLOWED:
        raise _UserCodeError


_ALLOWED: Final = _Probe.__eq__.__code__


def exit_callbacks() -> list[object]:
    """Return what `atexit` keeps; nothing while a profiler runs, since the guard against user code needs its place."""
    # No function returns the array (Modules/atexitmodule.c), but `unregister` compares each entry with its argument.
    unregister = safe_access.loaded("atexit", "unregister")
    if type(unregister) is not types.BuiltinFunctionType or sys.getprofile() is not None:
        return []
    if sys.version_info[:2] == (3, 11) and not clear_mark():
        return []  # with the interpreter's mark set, the probe's first call would never end
    probe = _Probe()
    try:
        _compare(unregister, probe)
    except _UserCodeError:  # what comes behind a function with a comparison of its own stays unknown
        pass
    finally:
        sys.setprofile(None)
    found, probe.met = probe.met, []
    return found


def _compare(unregister: Callable[[object], object], probe: _Probe) -> None:
    sys.setprofile(_guard)
    unregister(probe)
