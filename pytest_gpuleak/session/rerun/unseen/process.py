"""Restore after a re-run what a test may have set in the process, the interpreter and the standard library."""

from __future__ import annotations

import contextvars
import functools
import gc
import os
import re
import signal
import sys
import threading
import types
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.heap.interpreter import getrefcount
from pytest_gpuleak.session.rerun.unseen.restoring import (
    Restore,
    all_of,
    if_loaded,
    keep_each,
    keep_list,
    keep_mapping,
    keep_names,
    keep_value,
    nothing,
    replace,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


SYS_NAMES = (
    "argv", "path", "stdin", "stdout", "stderr", "dont_write_bytecode",
    "last_type", "last_value", "last_traceback", "last_exc", "ps1", "ps2",
)  # fmt: skip
"""Names of `sys` that tests replace. An error left in `last_value` would keep the locals of the re-run's frames."""

_OF_THREADS: Final = ("_trace_hook", "_profile_hook")
"""Names of `threading` for what future threads are traced and profiled by."""

FUNCTIONS: Final = {
    "sys": ("excepthook", "displayhook", "breakpointhook", "unraisablehook"),
    "threading": ("excepthook", *_OF_THREADS),
    "logging": ("_logRecordFactory", "_loggerClass"),
}
"""Names of modules for functions that are called on occasion."""

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


def keep_settings() -> Restore:
    """Note what functions read that have a counterpart which writes it."""
    return keep_each(
        [
            *(functools.partial(keep_setting, *row) for row in SETTINGS),
            lambda: keep_value(_read_umask, os.umask),
            lambda: keep_value(gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        ]
    )


def keep_setting(module: str, read: str, write: str) -> Restore:
    """Note what a function of a module reads and another one writes."""
    loaded = sys.modules.get(module)
    reader, writer = getattr(loaded, read, None), getattr(loaded, write, None)
    if reader is None or writer is None:
        return nothing
    if type(reader()) is dict:
        return keep_value(reader, lambda names: writer(**names))
    return keep_value(reader, lambda value: writer(*value) if type(value) is tuple else writer(value))


def _read_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def keep_environment() -> Restore:
    """Note the working directory and the environment's variables."""
    folder = keep_value(_working_directory, lambda saved: None if saved is None else os.chdir(saved))
    return all_of([folder, keep_mapping(os.environ)])


def _working_directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - a plain string is all that is kept
    except OSError:
        return None  # the test has removed it


def keep_sys() -> Restore:
    """Note the arguments, search path and streams of the interpreter. Of hooks, see `hooks`."""
    lists = [keep_list(value) for value in (sys.argv, sys.path) if type(value) is list]
    return all_of([*lists, keep_names(vars(sys), SYS_NAMES)])


def hooks() -> Iterator[tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Yield how the functions that are called on occasion are read and set; the handlers of signals in the main thread."""
    for module, names in FUNCTIONS.items():
        namespace = vars(sys.modules[module]) if module in sys.modules else {}
        for name in names:
            if name in namespace:
                yield functools.partial(namespace.get, name), functools.partial(namespace.__setitem__, name)
    if threading.current_thread() is threading.main_thread():
        for number in _signal_numbers():
            yield functools.partial(signal.getsignal, number), functools.partial(signal.signal, number)


@functools.cache
def _signal_numbers() -> tuple[int, ...]:
    return tuple(map(int, signal.valid_signals()))


def keep_replaced_hooks() -> Restore:
    """Note hooks. One that others keep too may be wrapped by a longer chain: that is put away once the verdict is reached."""
    return all_of(_keep_alone(*hook) for hook in hooks())


def _keep_alone(read: Callable[[], Any], write: Callable[[Any], object]) -> Restore:
    saved = [read()]

    def restore() -> None:
        if getrefcount(saved[0]) <= _ALONE and read() is not saved[0]:
            write(saved[0])

    return restore


_ALONE: Final = getrefcount([object()][0]) + 1
"""References to an object that a list alone keeps, as `getrefcount` counts them."""


def keep_modules() -> Restore:
    """Note the loaded modules. What the re-run has imported stays: no extension module can be initialised again."""
    saved = dict(sys.modules)

    def restore() -> None:
        for name, module in saved.items():
            if sys.modules.get(name) is not module:
                sys.modules[name] = module
                parent, _, child = name.rpartition(".")
                above = saved.get(parent)
                if type(above) is types.ModuleType and child in vars(above):
                    vars(above)[child] = module

    return restore


def pause_tracing() -> Restore:
    """Remove trace and profile functions, and the events of `sys.monitoring`, which would see the re-run."""
    # Hooks for future threads stay: a test of them would fail its re-run. So does a profiler in C that Python cannot put
    # back, as cProfile before Python 3.12: what ``sys.getprofile`` returns of it is no function.
    unset = [name for name in _OF_THREADS if vars(threading)[name] is None]  # the others are among `hooks`
    threads = keep_names(vars(threading), unset)
    hooks: list[tuple[Any, Any]] = [(sys.settrace, sys.gettrace()), (sys.setprofile, sys.getprofile())]
    paused = [(write, hook) for write, hook in hooks if callable(hook)]
    for write, _ in paused:
        write(None)
    restores = [functools.partial(write, hook) for write, hook in paused]
    return all_of([_pause_monitoring(), *restores, threads])


def _pause_monitoring() -> Restore:
    monitoring: Any = getattr(sys, "monitoring", None)  # Python 3.12
    names = {} if monitoring is None else {tool: monitoring.get_tool(tool) for tool in range(6)}
    events = {tool: monitoring.get_events(tool) for tool, name in names.items() if name is not None}
    for tool in events:
        monitoring.set_events(tool, 0)

    def restore() -> None:
        for tool, before in events.items():
            if monitoring.get_tool(tool) == names[tool]:
                monitoring.set_events(tool, before)

    return restore


COUNTERS: Final = (
    ("threading", None, "_counter"),
    ("multiprocessing.process", None, "_process_counter"),
    ("concurrent.futures.thread", "ThreadPoolExecutor", "_counter"),
)
"""Module, class if any, and name of an `itertools.count` or its ``__next__``, behind names such as ``Thread-4`` that later
tests print and compare. The counter of ``Task-1`` is a variable of CPython's ``_asyncio`` that no function sets."""

_PLAIN: Final = re.compile(r"count\((\d+)\)")


def keep_name_counters() -> Restore:
    """Have a re-run count by copies of the counters that are loaded."""
    return keep_each(functools.partial(_copy, *row) for row in COUNTERS)


def _copy(module: str, class_name: str | None, name: str) -> Restore:
    loaded: Any = sys.modules.get(module)
    owner = loaded if class_name is None else getattr(loaded, class_name)
    found: Any = getattr(owner, name)
    counter = found.__self__ if type(found) is types.MethodWrapperType else found
    # Its `repr` alone tells the next number: it can no longer be copied from Python 3.14 on.
    plain = _PLAIN.fullmatch(repr(counter)) if type(counter) is count else None
    if plain is None:
        return nothing  # a test has replaced it
    copied = count(int(plain.group(1)))
    return replace(owner, name, copied if found is counter else copied.__next__)


PLAIN = frozenset(map(id, (bool, bytes, float, int, str, type(None))))
"""Ids of the types of context variables' values that are noted: they keep no object alive."""


def loggers_of(logging: Any) -> list[Any]:
    """Return all loggers of the module `logging`."""
    root = logging.root
    return [root, *(one for one in root.manager.loggerDict.values() if logging.Logger in type(one).__mro__)]


@if_loaded("logging")
def keep_logging(logging: Any) -> Restore:
    """Note the levels of all loggers, and what is set for all of them. What may grow is put back later: see `after_verdict`."""
    manager = logging.root.manager
    loggers = [keep_names(vars(one), ["level", "disabled", "propagate"]) for one in loggers_of(logging)]
    names = keep_names(vars(logging), ["raiseExceptions", "lastResort"])
    # Loggers remember which levels are enabled: that comes last.
    return all_of([manager._clear_cache, keep_names(vars(manager), ["_disable"]), names, *loggers])


@if_loaded("locale")
def keep_locale(locale: Any) -> Restore:
    """Note the locale."""
    return keep_value(lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name))


@if_loaded("decimal")
def keep_decimal(decimal: Any) -> Restore:
    """Note the thread's context for decimal numbers, and what is set in it."""
    context = decimal.getcontext()
    saved = context.copy()

    def restore() -> None:
        if decimal.getcontext() is not context:
            decimal.setcontext(context)
        for name in ("prec", "rounding", "Emin", "Emax", "capitals", "clamp", "flags", "traps"):
            setattr(context, name, getattr(saved, name))

    return restore


def keep_context_variables() -> Restore:
    """Note the context variables that have plain values."""
    plain = [variable for variable, value in contextvars.copy_context().items() if id(type(value)) in PLAIN]
    return all_of(keep_value(partial(variable.get, None), variable.set) for variable in plain)


@if_loaded("asyncio.events")
def keep_event_loop(events: Any) -> Restore:
    """Note the policy of event loops, and the main thread's loop."""
    policy = keep_names(vars(events), ["_event_loop_policy"])
    local = getattr(vars(events).get("_event_loop_policy"), "_local", None)
    return policy if local is None else all_of([policy, keep_names(vars(local), ["_loop", "_set_called"])])


@if_loaded("tracemalloc")
def keep_tracemalloc(tracemalloc: Any) -> Restore:
    """Note whether allocations are traced, with how many frames."""
    return keep_value(
        lambda: tracemalloc.is_tracing() and tracemalloc.get_traceback_limit(),
        lambda frames: tracemalloc.start(frames) if frames else tracemalloc.stop(),
    )
