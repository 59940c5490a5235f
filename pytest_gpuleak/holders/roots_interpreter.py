"""Roots that no container shows to the collector, but that the interpreter hands out when it is asked.

Signal handlers lie in an array (Modules/signalmodule.c), profile and trace functions in the thread's state
(Python/sysmodule.c), and so does the current context (Python/context.c). What `atexit` keeps lies in an array that
nothing hands out (Modules/atexitmodule.c), and so do audit hooks: those stay native.
"""

from __future__ import annotations

import contextvars
import sys
import types
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.holders import raw
from pytest_gpuleak.holders.roots_kinds import EDITABLE, EXCEPTION, Root

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_CODEC_ERRORS: Final = "strict"
"""The first of the error handlers that the interpreter registers itself (Python/codecs.c)."""


def interpreter_roots(wanted: Collection[int]) -> list[tuple[int, Root]]:
    """The roots that the interpreter itself is to the objects whose ids are `wanted`: pairs of id and root."""
    found: list[tuple[int, Root]] = []
    for value, text in _handed_out():
        if id(value) in wanted:
            found.append((id(value), Root(EDITABLE, "module", text, hops=1, preference=(2, text))))
    for variable, value in contextvars.copy_context().items():
        if id(value) in wanted:
            text = f"{_name_of_variable(variable)}.get()"
            found.append((id(value), Root(EDITABLE, "module", text, hops=1, preference=(2, text))))
    return found


def registry_root(container: object) -> Root | None:
    """The root that a registry of the interpreter's own is, recognised by what it always holds; else None."""
    if type(container) is dict:
        for name, handler in dict.items(container):  # the first item alone
            if type(name) is str and name == _CODEC_ERRORS and handler is raw.loaded("codecs", "strict_errors"):
                text = "codecs.register_error"
                return Root(EDITABLE, "module", text, hops=1, preference=(2, text))
            break
    elif type(container) is list:
        first = list.__getitem__(container, 0) if list.__len__(container) else None
        if type(first) is types.FunctionType and first is raw.loaded("encodings", "search_function"):
            text = "codec search functions (codecs.register)"
            return Root(EDITABLE, "module", text, hops=1, preference=(2, text))
    elif type(container) is contextvars.Context:
        # Some thread's state, at worst: everything else that may hold a context is seen by the collector.
        return Root(EXCEPTION, "thread", "a thread's context", hops=2)
    return None


def _handed_out() -> Iterator[tuple[object, str]]:
    """Objects that the interpreter keeps where the collector does not look, by how one asks for them."""
    namespace = raw.module_dict(raw.loaded_module("_signal"))
    read = None if namespace is None else namespace.get("getsignal")
    if namespace is not None and read is not None:
        for name in sorted(namespace):
            number = namespace[name]
            if name.startswith("SIG") and not name.startswith("SIG_") and type(number) is int:
                try:
                    yield read(number), f"signal.getsignal(signal.{name})"
                except ValueError:  # a number that this system does not have
                    continue
    yield sys.getprofile(), "sys.getprofile()"
    yield sys.gettrace(), "sys.gettrace()"
    hooks = sys.get_asyncgen_hooks()
    yield hooks.firstiter, "sys.get_asyncgen_hooks().firstiter"
    yield hooks.finalizer, "sys.get_asyncgen_hooks().finalizer"


def _name_of_variable(variable: contextvars.ContextVar[object]) -> str:
    """A context variable by the global that holds it, or by its own name."""
    for private in (False, True):
        for module, namespace in raw.loaded_modules().items():
            if module.startswith("_") is not private:
                continue
            for name, value in list(dict.items(namespace)):
                if value is variable and raw.is_attribute_name(name):
                    return f"{module}.{name}"
    return f"<ContextVar {variable.name!r}>"
