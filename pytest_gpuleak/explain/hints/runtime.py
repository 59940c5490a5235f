"""Hints on standard library objects that record their inputs: exceptions, mocks, log records, context variables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.hints.trail import code, cut

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.trail import Trail

_EXCEPTION_ARGUMENT: Final = re.compile(r"\.args\[\d+\]")
"""Reference to an exception's argument. A partial's or record's ``.args`` and its item are two references."""

_CONTEXT_VARIABLE: Final = re.compile(r"\[<ContextVar (?P<name>'.*')>\]")
_CURRENT_VALUE: Final = ".get()"
"""End of the root of a context variable's current value (`explain.roots.interpreter`)."""

_EXIT_CALLBACK: Final = "atexit callback "
"""Beginning of the root of a function that `atexit` keeps (`explain.roots.library_names`)."""

_AT_EXIT: Final = " (atexit, or "
_FUNCTION: Final = re.compile(r"[^-]* -> function (?P<name>[\w.<>]+?)(?:\.__\w+__\b.*|[ (\[].*)?", re.DOTALL)
"""Beginning of a path that leads from C++ through a function (`explain.paths`)."""

_FINALIZER: Final = "weakref.finalize callback "
_KEEPS_AWAITED: Final = ", which it refers to"
"""End of the root of a finaliser that keeps alive what it waits for (`explain.roots.library_names`)."""

_PATCH: Final = re.compile(r"unittest\.mock\.patch of (?P<name>'.*'), not stopped")
_SIGNAL: Final = re.compile(r"signal\.getsignal\(signal\.(?P<name>SIG\w+)\)")
_PROFILERS: Final = {"sys.getprofile()": "sys.setprofile(None)", "sys.gettrace()": "sys.settrace(None)"}
_CALLS: Final = {".call_args_list", ".mock_calls", ".call_args", ".method_calls"}
_CALL_TYPES: Final = {"unittest.mock._CallList", "unittest.mock._Call"}


def mock_calls(trail: Trail) -> str | None:
    """Recognise a mock, which keeps the arguments of each call (Lib/unittest/mock.py, _increment_mock_call)."""
    for index, step in enumerate(trail.steps):
        if trail.named and step.edge in _CALLS and trail.type(index + 1) in _CALL_TYPES:
            mock = trail.owner(index)
            return (
                f"The mock {mock} keeps the arguments of each call: call its `reset_mock()` in teardown, or make a new "
                "mock for each test."
            )
    return None


def log_record(trail: Trail) -> str | None:
    """Recognise a handler that keeps records: arguments are formatted only when a record is written."""
    for index, step in enumerate(trail.steps):
        if step.type != "logging.LogRecord" or not trail.named:
            continue
        if step.edge in (".args", ".msg"):
            return (
                f"A log record kept in {trail.container_of(index)} keeps what was logged: log plain values "
                "(`loss.item()`, a shape), or empty the handler in teardown."
            )
        if step.edge == ".exc_info":
            return (
                f"A log record kept in {trail.container_of(index)} keeps an exception, and by its traceback the locals of "
                "each frame: empty the handler in teardown, or log `str(error)`."
            )
    return None


def stored_traceback(trail: Trail) -> str | None:
    """Recognise a stored exception or ExceptionInfo: its traceback keeps the locals of every frame."""
    if not trail.named:
        return None  # who keeps a bare traceback is unknown
    types = [step.type for step in trail.steps]
    index = trail.find(".__traceback__", ".__context__", ".__cause__", "._excinfo")
    if index is None and "traceback" in types:
        return (
            f"The traceback kept in {trail.container_of(types.index('traceback'))} keeps the locals of each frame: keep "
            "`traceback.format_exc()` instead, or drop it in teardown."
        )
    if index is None or "traceback" not in types[index + 1 :]:
        return None
    place = trail.container_of(index)
    if trail.edge(index) == "._excinfo":
        return (
            f"What `pytest.raises` gave is kept in {place}, with the traceback and the locals of each frame: keep "
            "`str(excinfo.value)` instead."
        )
    if trail.edge(index) == ".__traceback__":
        return (
            f"The exception kept in {place} keeps its traceback, and that the locals of each frame: keep `str(error)`, "
            "or `error.with_traceback(None)`."
        )
    return (
        f"The exception kept in {place} keeps the one before it, whose traceback keeps the locals of each frame: keep "
        "`str(error)` instead."
    )


def exception_argument(trail: Trail) -> str | None:
    """Recognise an array among the arguments of a stored exception."""
    found = trail.match(_EXCEPTION_ARGUMENT)
    if found is None or not trail.named:
        return None
    return (
        f"The exception kept in {trail.container_of(found[0])} was raised with an array as an argument: raise it with plain "
        "values, or keep `str(error)`."
    )


def context_variable(trail: Trail) -> str | None:
    """Recognise a context variable that still has the value set in the test."""
    found = trail.match(_CONTEXT_VARIABLE)
    if trail.kind == "module" and trail.root.endswith(_CURRENT_VALUE):
        name = code(trail.root.removesuffix(_CURRENT_VALUE))
    elif found is not None and trail.type(found[0]) == "contextvars.Context":
        name = cut(found[1]["name"])
    else:
        return None
    return (
        f"The context variable {name} keeps the value that was set: keep the token that `set()` returns and call "
        "`reset(token)` in teardown."
    )


def finalizer(trail: Trail) -> str | None:
    """Recognise function and arguments of a `weakref.finalize`, kept until its object dies (Lib/weakref.py)."""
    if not trail.root.startswith(_FINALIZER):
        return None
    if trail.root.endswith(_KEEPS_AWAITED):
        return (
            f"The {cut(trail.root.removesuffix(_KEEPS_AWAITED), 60)} refers to the object that it waits for, which so "
            "never dies: give it a function and values that do not, such as a static method."
        )
    return (
        f"The {cut(trail.root, 60)} keeps its function and arguments until its object dies: give it plain values, or call "
        "its `detach()` in teardown."
    )


def at_exit(trail: Trail) -> str | None:
    """Recognise a function that a list in C keeps, most likely `atexit`'s (Modules/atexitmodule.c)."""
    if trail.kind == "native" and trail.root.startswith(_EXIT_CALLBACK):
        return (
            f"{code(trail.root.removeprefix(_EXIT_CALLBACK))} was given to `atexit.register()` and stays, with what it "
            "refers to, until Python ends: give it to `atexit.unregister()` in teardown."
        )
    found = _FUNCTION.fullmatch(trail.holder.text) if trail.kind == "native" else None
    if found is None or _AT_EXIT not in trail.holder.text:
        return None
    return (
        f"If {code(found['name'])} was given to `atexit.register()`, it stays, with what it refers to, until Python "
        "ends: give it to `atexit.unregister()` in teardown."
    )


def patch_not_stopped(trail: Trail) -> str | None:
    """Recognise a patch that was started by hand: it keeps the old value and the new one."""
    found = _PATCH.fullmatch(trail.root)
    if found is None:
        return None
    return (
        f"The patch of {cut(found['name'])} was started and never stopped: call its `stop()` in teardown "
        "(`addCleanup(patcher.stop)`), or patch by `with`."
    )


def signal_handler(trail: Trail) -> str | None:
    """Recognise a signal handler that was set in the test."""
    found = _SIGNAL.fullmatch(trail.root)
    if found is None:
        return None
    return (
        f"The handler set for {found['name']} keeps what it refers to: in teardown, give `signal.signal()` back the "
        "handler that it returned."
    )


def profiler(trail: Trail) -> str | None:
    """Recognise a profile or trace function that was set in the test."""
    if trail.root not in _PROFILERS:
        return None
    return f"A function that is still set keeps what it refers to: call `{_PROFILERS[trail.root]}` in teardown."
