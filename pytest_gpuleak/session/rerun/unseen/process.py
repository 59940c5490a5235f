"""Restore after a re-run what a test may have set in the process, in loaded modules. Lists are cut back later."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.session.rerun.unseen.name_counters import keep_name_counters
from pytest_gpuleak.session.rerun.unseen.random_state import keep_random_states
from pytest_gpuleak.session.rerun.unseen.restoring import (
    Restore,
    all_of,
    if_loaded,
    keep_each,
    keep_list,
    keep_names,
    nothing,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.adapters.frameworks import Frameworks

SYS_NAMES = (
    "argv", "path", "stdin", "stdout", "stderr", "excepthook", "displayhook", "breakpointhook", "unraisablehook",
    "dont_write_bytecode", "last_type", "last_value", "last_traceback", "last_exc", "ps1", "ps2",
)  # fmt: skip
"""Names of `sys` that tests replace. An error left in `last_value` would keep the locals of the re-run's frames."""

SETTINGS = (
    ("sys", "getrecursionlimit", "setrecursionlimit"),
    ("sys", "getswitchinterval", "setswitchinterval"),
    ("sys", "get_int_max_str_digits", "set_int_max_str_digits"),  # Python 3.10 got it in a patch release
    ("gc", "get_threshold", "set_threshold"),
    ("gc", "get_debug", "set_debug"),
    ("socket", "getdefaulttimeout", "setdefaulttimeout"),
    ("numpy", "geterr", "seterr"),
    ("numpy", "get_printoptions", "set_printoptions"),
)
"""Modules and their functions that read a setting and write it. Other interpreters than CPython lack some."""

PLAIN = (bool, bytes, float, int, str, type(None))
"""Types of context variables' values that are noted: they keep no object alive."""


def keep_process(frameworks: Frameworks) -> Restore:
    """Note the state of the process and the frameworks; the returned function restores it."""
    restores = [keep_each(KEEPERS)]
    with contextlib.suppress(Exception):
        restores += frameworks.keep_states()
    return all_of(restores)


def _keep_environment() -> Restore:
    folder = _keep_value(_working_directory, lambda saved: None if saved is None else os.chdir(saved))
    return all_of([folder, _keep_value(lambda: dict(os.environ), _set_environment)])


def _set_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _working_directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - a plain string is all that is kept
    except OSError:
        return None  # the test has removed it


def _keep_sys() -> Restore:
    lists = [keep_list(value) for value in (sys.argv, sys.path) if type(value) is list]
    return all_of([*lists, keep_names(vars(sys), SYS_NAMES), keep_names(vars(threading), ["excepthook"])])


def _keep_settings() -> Restore:
    return keep_each(
        [
            *(functools.partial(keep_setting, *row) for row in SETTINGS),
            lambda: _keep_value(_read_umask, os.umask),
            lambda: _keep_value(gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        ]
    )


def keep_setting(module: str, read: str, write: str) -> Restore:
    """Keep what two functions of a module read and write."""
    loaded = sys.modules.get(module)
    reader, writer = getattr(loaded, read, None), getattr(loaded, write, None)
    return nothing if reader is None or writer is None else _keep_value(reader, functools.partial(_write, writer))


def _write(writer: Any, value: Any) -> None:
    if type(value) is dict:
        writer(**value)
    elif type(value) is tuple:
        writer(*value)
    else:
        writer(value)


def _keep_value(read: Callable[[], Any], write: Callable[[Any], Any]) -> Restore:
    saved = read()

    def restore() -> None:
        if read() != saved:
            write(saved)

    return restore


def _read_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _pause_tracing() -> Restore:
    # Hooks for future threads stay: a test of them would fail its re-run. So does a profiler in C that Python cannot put
    # back, as cProfile before Python 3.12: what ``sys.getprofile`` returns of it is no function.
    trace, profile = sys.gettrace(), sys.getprofile()
    threads = keep_names(vars(threading), ["_trace_hook", "_profile_hook"])
    hooks: list[tuple[Any, Any]] = [(sys.settrace, trace), (sys.setprofile, profile)]
    paused = [(write, hook) for write, hook in hooks if callable(hook)]
    for write, _ in paused:
        write(None)

    def restore() -> None:
        threads()
        for write, hook in reversed(paused):
            write(hook)

    return all_of([_pause_monitoring(), restore])


def _pause_monitoring() -> Restore:
    monitoring: Any = getattr(sys, "monitoring", None)  # Python 3.12
    if monitoring is None:
        return nothing
    tools = {tool: monitoring.get_tool(tool) for tool in range(6)}
    events = {tool: monitoring.get_events(tool) for tool, name in tools.items() if name is not None}
    for tool in events:
        monitoring.set_events(tool, 0)

    def restore() -> None:
        for tool, before in events.items():
            if monitoring.get_tool(tool) == tools[tool]:
                monitoring.set_events(tool, before)

    return restore


def _keep_signals() -> Restore:
    if threading.current_thread() is not threading.main_thread():
        return nothing  # only the main thread may set them
    saved = {number: signal.getsignal(number) for number in _signal_numbers()}

    def restore() -> None:
        for number, handler in saved.items():
            if handler is not None and signal.getsignal(number) is not handler:
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, handler)

    return restore


@functools.cache
def _signal_numbers() -> tuple[int, ...]:
    return tuple(map(int, signal.valid_signals()))


def _keep_modules() -> Restore:
    # What the re-run has imported stays. To initialise a removed extension module a second time may end the process.
    names, modules = list(sys.modules), list(sys.modules.values())
    identities = list(map(id, modules))

    def restore() -> None:
        if list(map(id, list(sys.modules.values()))) == identities:  # thousands, compared in C
            return
        saved = dict(zip(names, modules, strict=True))
        for name, module in saved.items():
            if sys.modules.get(name) is module:
                continue
            sys.modules[name] = module
            parent, _, child = name.rpartition(".")
            above = saved.get(parent)
            if type(above) is types.ModuleType and child in vars(above):
                vars(above)[child] = module

    return restore


@if_loaded("logging")
def _keep_logging(logging: Any) -> Restore:
    root = logging.root
    loggers = [root, *(one for one in root.manager.loggerDict.values() if logging.Logger in type(one).__mro__)]
    slots = [keep_names(vars(logging), ["raiseExceptions", "_loggerClass", "_logRecordFactory", "lastResort"])]
    saved = [(logger, logger.level, logger.disabled, logger.propagate) for logger in loggers]
    disabled = root.manager.disable

    def restore() -> None:
        changed = root.manager.disable != disabled
        root.manager.disable = disabled
        for logger, level, off, propagate in saved:
            if (logger.level, logger.disabled, logger.propagate) != (level, off, propagate):
                changed = True
                logger.level, logger.disabled, logger.propagate = level, off, propagate
        if changed:
            root.manager._clear_cache()  # loggers cache which levels are enabled

    return all_of([*slots, restore])


@if_loaded("locale")
def _keep_locale(locale: Any) -> Restore:
    return _keep_value(lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name))


@if_loaded("decimal")
def _keep_decimal(decimal: Any) -> Restore:
    context = decimal.getcontext()
    saved = context.copy()
    names = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp", "flags", "traps")

    def restore() -> None:
        if decimal.getcontext() is not context:
            decimal.setcontext(context)
        for name in names:
            setattr(context, name, getattr(saved, name))

    return restore


def _keep_context_variables() -> Restore:
    import contextvars

    saved = {
        variable: value
        for variable, value in contextvars.copy_context().items()
        if any(type(value) is t for t in PLAIN)
    }

    def restore() -> None:
        now = contextvars.copy_context()
        for variable, value in saved.items():
            if now.get(variable) is not value:
                variable.set(value)

    return restore


@if_loaded("asyncio.events")
def _keep_event_loop(events: Any) -> Restore:
    policy = keep_names(vars(events), ["_event_loop_policy"])
    local = getattr(vars(events).get("_event_loop_policy"), "_local", None)
    return policy if local is None else all_of([policy, keep_names(vars(local), ["_loop", "_set_called"])])


@if_loaded("tracemalloc")
def _keep_tracemalloc(tracemalloc: Any) -> Restore:
    return _keep_value(
        lambda: tracemalloc.is_tracing() and tracemalloc.get_traceback_limit(),
        lambda frames: tracemalloc.start(frames) if frames else tracemalloc.stop(),
    )


KEEPERS: tuple[Callable[[], Restore], ...] = (
    _pause_tracing,
    keep_random_states,
    _keep_environment,
    _keep_sys,
    keep_name_counters,
    _keep_settings,
    _keep_signals,
    _keep_modules,
    _keep_logging,
    _keep_locale,
    _keep_decimal,
    _keep_context_variables,
    _keep_event_loop,
    _keep_tracemalloc,
)
"""What is noted. Tracing is paused first and resumed last: it would trace the other functions."""
