"""Restore after a re-run what a test may have set in modules of the standard library, where they are loaded."""

from __future__ import annotations

import contextvars
from functools import partial
from typing import Any

from pytest_gpuleak.session.rerun.unseen.restoring import Restore, all_of, if_loaded, keep_names, keep_value

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
