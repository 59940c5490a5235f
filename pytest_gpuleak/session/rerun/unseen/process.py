"""Restore the process's own state after a re-run as the first run left it.

Only what a test may set without setting it back is noted, and only in modules that are loaded. Each is a slot with one
value. Lists that tests append to are cut back later (`lists`), once it is known whether they hold what leaked.
"""

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

from pytest_gpuleak.session.rerun.random_state import keep_random_states
from pytest_gpuleak.session.rerun.unseen.restoring import Restore, all_of, keep_list, keep_names, nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.adapters.frameworks import Frameworks

SYS_NAMES = (
    "argv", "path", "stdin", "stdout", "stderr", "excepthook", "displayhook", "breakpointhook", "unraisablehook",
    "dont_write_bytecode", "last_type", "last_value", "last_traceback", "last_exc", "ps1", "ps2",
)  # fmt: skip
"""Names of `sys` that tests replace. An error left in `last_value` would keep the locals of the re-run's frames."""

PLAIN = (bool, bytes, float, int, str, type(None))
"""Types of context variables' values that are noted: they keep no object alive."""


def keep_process(frameworks: Frameworks) -> Restore:
    """Note the state of the process and the frameworks; the returned function restores it."""
    restores: list[Restore] = []
    for keep in KEEPERS:
        with contextlib.suppress(Exception):  # a replaced module, an interpreter without the function
            restores.append(keep())
    with contextlib.suppress(Exception):
        restores += frameworks.keep_states()
    return all_of(restores)


def _keep_environment() -> Restore:
    folder, environment = _working_directory(), dict(os.environ)

    def restore() -> None:
        if environment != dict(os.environ):
            os.environ.clear()
            os.environ.update(environment)
        if folder is not None and folder != _working_directory():
            with contextlib.suppress(OSError):
                os.chdir(folder)

    return restore


def _working_directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - a plain string is all that is kept
    except OSError:
        return None  # the test has removed it


def _keep_sys() -> Restore:
    lists = [keep_list(value) for value in (sys.argv, sys.path) if type(value) is list]
    return all_of([*lists, keep_names(vars(sys), SYS_NAMES), keep_names(vars(threading), ["excepthook"])])


def _keep_interpreter() -> Restore:
    return all_of(
        [
            _keep_value(sys.getrecursionlimit, sys.setrecursionlimit),
            _keep_pair(sys, "getswitchinterval", "setswitchinterval"),
            _keep_value(_read_umask, os.umask),
            _keep_pair(gc, "get_threshold", "set_threshold"),
            _keep_pair(gc, "get_debug", "set_debug"),
            _keep_value(gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
            _keep_integer_digits(),
        ]
    )


def _keep_value(read: Callable[[], Any], write: Callable[[Any], Any]) -> Restore:
    saved = read()

    def restore() -> None:
        if read() != saved:
            write(saved)

    return restore


def _keep_pair(module: Any, read: str, write: str) -> Restore:
    """Keep what two functions of a module read and write; other interpreters than CPython lack some."""
    reader, writer = getattr(module, read, None), getattr(module, write, None)
    if reader is None or writer is None:
        return nothing
    return _keep_value(reader, lambda value: writer(*value) if type(value) is tuple else writer(value))


def _read_umask() -> int:
    """Read the umask, which is only possible by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _keep_integer_digits() -> Restore:
    read: Any = getattr(sys, "get_int_max_str_digits", None)  # Python 3.10 got it in a patch release
    return nothing if read is None else _keep_value(read, sys.set_int_max_str_digits)


def _pause_tracing() -> Restore:
    """Take debuggers and profilers off this thread during a re-run.

    Hooks for future threads stay: a test of them would fail its re-run. So does a profiler in C that Python cannot put
    back, as cProfile before Python 3.12: what ``sys.getprofile`` returns of it is no function.
    """
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
    """Restore modules that the re-run has removed or replaced. What it has imported stays.

    The next import would initialise a removed extension module a second time, which may end the process.
    """
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


def _keep_logging() -> Restore:
    logging: Any = sys.modules.get("logging")
    if logging is None:
        return nothing
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


def _keep_locale() -> Restore:
    locale: Any = sys.modules.get("locale")
    if locale is None:
        return nothing
    return _keep_value(lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name))


def _keep_decimal() -> Restore:
    decimal: Any = sys.modules.get("decimal")
    if decimal is None:
        return nothing
    context = decimal.getcontext()
    saved = context.copy()
    names = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp", "flags", "traps")

    def restore() -> None:
        if decimal.getcontext() is not context:
            decimal.setcontext(context)
        for name in names:
            if getattr(context, name) != getattr(saved, name):
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


def _keep_event_loop() -> Restore:
    events: Any = sys.modules.get("asyncio.events")
    if events is None:
        return nothing
    policy = keep_names(vars(events), ["_event_loop_policy"])
    local = getattr(vars(events).get("_event_loop_policy"), "_local", None)
    return policy if local is None else all_of([policy, keep_names(vars(local), ["_loop", "_set_called"])])


def _keep_tracemalloc() -> Restore:
    tracemalloc: Any = sys.modules.get("tracemalloc")
    if tracemalloc is None:
        return nothing
    tracing, frames = tracemalloc.is_tracing(), tracemalloc.get_traceback_limit()

    def restore() -> None:
        if tracing and not tracemalloc.is_tracing():
            tracemalloc.start(frames)
        elif not tracing and tracemalloc.is_tracing():
            tracemalloc.stop()

    return restore


def _keep_sockets() -> Restore:
    socket: Any = sys.modules.get("socket")
    return nothing if socket is None else _keep_value(socket.getdefaulttimeout, socket.setdefaulttimeout)


def _keep_numpy() -> Restore:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return nothing
    errors = _keep_value(numpy.geterr, lambda saved: numpy.seterr(**saved))
    return all_of([errors, _keep_value(numpy.get_printoptions, lambda saved: numpy.set_printoptions(**saved))])


KEEPERS: tuple[Callable[[], Restore], ...] = (
    _pause_tracing,
    keep_random_states,
    _keep_environment,
    _keep_sys,
    _keep_interpreter,
    _keep_signals,
    _keep_modules,
    _keep_logging,
    _keep_locale,
    _keep_decimal,
    _keep_context_variables,
    _keep_event_loop,
    _keep_tracemalloc,
    _keep_sockets,
    _keep_numpy,
)
"""What is noted. Tracing is paused first and resumed last: it would trace the other functions."""
