"""Hints on standard library objects that record their inputs: exceptions, mocks, log records, context variables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.edge_to_edit import CURRENT_VALUE
from pytest_gpuleak.explain.hints.pattern import Pattern
from pytest_gpuleak.explain.hints.trail import code, cut
from pytest_gpuleak.explain.roots.library_names import AT_EXIT, KEEPS_AWAITED

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.trail import Trail

_CONTEXT_VARIABLE: Final = re.compile(r"\[<ContextVar (?P<name>'.*')>\]")
_FUNCTION: Final = re.compile(r"[^-]* -> function (?P<name>[\w.<>]+?)(?:\.__\w+__\b.*|[ (\[].*)?", re.DOTALL)
"""Beginning of a path that leads from C++ through a function (`explain.paths`)."""

_ARGUMENTS: Final = re.compile(r"C\+\+ \(atexit, or [^()]*\) -> tuple\[\d+\].*", re.DOTALL)
"""A path that begins with the arguments, which a list in C keeps beside the function."""


mock_calls: Final = Pattern(
    "The mock {owner} keeps the arguments of each call: call its `reset_mock()` in teardown, or make a new mock for "
    "each test.",
    edge=r"\.(call_args_list|mock_calls|call_args|method_calls)",
    after=r"unittest\.mock\.(_CallList|_Call)",
)
"""A mock, which keeps the arguments of each call (Lib/unittest/mock.py, _increment_mock_call)."""


def log_record(trail: Trail) -> str | None:
    """Recognise a handler that keeps records: arguments are formatted only when a record is written."""
    index = trail.first(lambda step: step.type == "logging.LogRecord" and step.edge in (".args", ".msg", ".exc_info"))
    if index is None or not trail.named:
        return None
    record = f"A log record kept in {trail.container_of(index)} keeps"
    if trail.edge(index) == ".exc_info":
        return (
            f"{record} an exception, and by its traceback the locals of each frame: empty the handler in teardown, or "
            "log `str(error)`."
        )
    return f"{record} what was logged: log plain values (`loss.item()`, a shape), or empty the handler in teardown."


def stored_traceback(trail: Trail) -> str | None:
    """Recognise a stored exception or ExceptionInfo: its traceback keeps the locals of every frame."""
    types = [step.type for step in trail.steps]
    if not trail.named or "traceback" not in types:
        return None  # who keeps a bare traceback is unknown
    index = trail.find(".__traceback__", ".__context__", ".__cause__", "._excinfo")
    if index is None:
        return (
            f"The traceback kept in {trail.container_of(types.index('traceback'))} keeps the locals of each frame: "
            "keep `traceback.format_exc()` instead, or drop it in teardown."
        )
    if "traceback" not in types[index + 1 :]:
        return None
    place, edge = trail.container_of(index), trail.edge(index)
    if edge == "._excinfo":
        return (
            f"What `pytest.raises` gave is kept in {place}, with the traceback and the locals of each frame: keep "
            "`str(excinfo.value)` instead."
        )
    if edge == ".__traceback__":
        return (
            f"The exception kept in {place} keeps its traceback, and that the locals of each frame: keep `str(error)`, "
            "or `error.with_traceback(None)`."
        )
    return (
        f"The exception kept in {place} keeps the one before it, whose traceback keeps the locals of each frame: keep "
        "`str(error)` instead."
    )


exception_argument: Final = Pattern(
    "The exception kept in {container} was raised with an array as an argument: raise it with plain values, or keep "
    "`str(error)`.",
    edge=r"\.args\[\d+\]",
)
"""An array among the arguments of a stored exception. A partial's ``.args`` and its item are two references."""


def context_variable(trail: Trail) -> str | None:
    """Recognise a context variable that still has the value set in the test."""
    found = trail.match(_CONTEXT_VARIABLE)
    if trail.kind == "module" and trail.root.endswith(CURRENT_VALUE):
        name = code(trail.root.removesuffix(CURRENT_VALUE))
    elif found is None or trail.type(found[0]) != "contextvars.Context" or trail.piles_up_before(found[0]):
        return None  # contexts that pile up are themselves to be taken out
    else:
        name = cut(found[1]["name"])
    return (
        f"The context variable {name} keeps the value that was set: keep the token that `set()` returns and call "
        "`reset(token)` in teardown."
    )


def finalizer(trail: Trail) -> str | None:
    """Recognise function and arguments of a `weakref.finalize`, kept until its object dies (Lib/weakref.py)."""
    if not trail.root.startswith("weakref.finalize callback "):
        return None
    if trail.root.endswith(KEEPS_AWAITED):
        return (
            f"The {cut(trail.root.removesuffix(KEEPS_AWAITED))} refers to the object that it waits for, which so never "
            "dies: give it a function and values that do not, such as a static method."
        )
    return (
        f"The {cut(trail.root)} keeps its function and arguments until its object dies: give it plain values, or call "
        "its `detach()` in teardown."
    )


def at_exit(trail: Trail) -> str | None:
    """Recognise a function that a list in C keeps, most likely `atexit`'s (Modules/atexitmodule.c)."""
    if trail.kind != "native":
        return None
    more = ""
    if trail.root.startswith(AT_EXIT):
        begin = f"{code(trail.root.removeprefix(AT_EXIT))} was given to `atexit.register()` and"
    elif _ARGUMENTS.fullmatch(trail.holder.text):
        begin = "If it is an argument of a function that was given to `atexit.register()`, that function"
    else:
        found = _FUNCTION.fullmatch(trail.holder.text)
        if found is None or " (atexit, or " not in trail.holder.text:
            return None
        begin = f"If {code(found['name'])} was given to `atexit.register()`, it"
        more = " What `torch.library` was given or `torch.jit.script` has compiled stays too, for good."
    return (
        f"{begin} stays, with what it refers to, until Python ends: give it to `atexit.unregister()` in teardown.{more}"
    )


patch_not_stopped: Final = Pattern(
    "The patch of {name} was started and never stopped: call its `stop()` in teardown (`addCleanup(patcher.stop)`), or "
    "patch by `with`.",
    root=r"unittest\.mock\.patch of (?P<name>'.*'), not stopped",
    kinds=(),
)
"""A patch that was started by hand: it keeps the old value and the new one."""


signal_handler: Final = Pattern(
    "The handler set for {name} keeps what it refers to: in teardown, give `signal.signal()` back the handler that it "
    "returned.",
    root=r"signal\.getsignal\(signal\.(?P<name>SIG\w+)\)",
    kinds=(),
)
"""A signal handler that was set in the test."""


profiler: Final = Pattern(
    "A function that is still set keeps what it refers to: call `sys.set{what}(None)` in teardown.",
    root=r"sys\.get(?P<what>profile|trace)\(\)",
    kinds=(),
)
"""A profile or trace function that was set in the test."""


mode_not_left: Final = Pattern(
    "`{mode}` was entered and never left: torch keeps it, and calls it in every later test. Enter it by `with`.",
    root=r"C\+\+ \(the modes that torch is in\)",
    type=r"(?s:(?P<mode>.*))",
    kinds=("native",),
)
"""A function or dispatch mode that was entered by hand."""
