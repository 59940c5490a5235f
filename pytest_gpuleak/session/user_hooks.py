"""The hooks that a conftest.py or a plugin implements for the check, called so that a fault of theirs costs no verdict."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.guarded import METHODS, GuardedFramework, missing_methods
from pytest_gpuleak.engine.stages import ARRAYS_HOOK, SETTLE_HOOK, Stage
from pytest_gpuleak.model.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.adapters.protocol import ArrayFramework
    from pytest_gpuleak.engine.run_tracker import Monitor

_MAX_NAME = 60
_HARMLESS = ("storage", "storage_users", "trace_origins")
"""Methods without whose answer nothing is missed: the array counts as its memory's only one, or has no line."""


def call_settle_hook(monitor: Monitor, nodeid: str) -> None:
    """Call `pytest_gpuleak_settle`, for a limited time.

    Args:
        monitor: watches the tests, and takes what goes wrong.
        nodeid: the test or fixture under suspicion.
    """
    from pytest_gpuleak.session.rerun.hanging import run_bounded  # a run without suspects does not load it

    config = monitor.config
    hook = config.hook.pytest_gpuleak_settle

    def call() -> list[Any]:
        return list(hook(config=config, nodeid=nodeid))

    with monitor.faults.guard(SETTLE_HOOK, nodeid, _code_of(hook)):
        for returned in run_bounded(monitor, call, SETTLE_HOOK.name, "look at what the hook waits for"):
            # Written with `async` or a `yield`, its body has not run.
            if type(returned) in (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType):
                if type(returned) is types.CoroutineType:
                    returned.close()
                raise TypeError("it is a generator or a coroutine, whose body never runs; accepted is a plain function")


def user_frameworks(monitor: Monitor) -> list[ArrayFramework]:
    """Ask `pytest_gpuleak_arrays` for the frameworks of the user's, each behind guards. What is none is told of.

    Args:
        monitor: watches the tests.
    """
    config, faults = monitor.config, monitor.faults
    hook = config.hook.pytest_gpuleak_arrays
    answers: list[Any] = []
    with faults.guard(ARRAYS_HOOK, "", _code_of(hook)):
        answers = hook(config=config)
    found: list[ArrayFramework] = []
    for answer in answers:
        if type(answer) not in (list, tuple):
            faults.add(
                ARRAYS_HOOK,
                f"it returned an object of type {type(answer).__name__}, accepted is a list of frameworks",
                "",
            )
            continue
        for framework in answer:
            with faults.guard(ARRAYS_HOOK, ""):
                missing = missing_methods(framework)
                if missing:
                    raise TypeError(f"{type(framework).__name__} has no {' and no '.join(missing)}")
                found.append(guard_framework(framework, monitor))
    return found


def guard_framework(framework: ArrayFramework, monitor: Monitor) -> ArrayFramework:
    """The framework behind guards; itself where it has them already.

    Args:
        framework: whose arrays are watched.
        monitor: knows the test under way, and takes what goes wrong.
    """
    if type(framework) is GuardedFramework:
        return framework
    given = getattr(framework, "name", None)
    name = clean_text(given if type(given) is str else type(framework).__name__, _MAX_NAME)
    stages = {
        method: Stage(
            f"{method}() of the arrays {name!r}",
            "arrays that it cannot tell of are not judged",
            method not in _HARMLESS,
        )
        for method in (*METHODS, "hold(...).alive")
    }
    codes = {method: _code_of_method(framework, method) for method in METHODS}
    return GuardedFramework(
        framework, name, lambda method: monitor.faults.guard(stages[method], monitor.nodeid, codes.get(method))
    )


def _code_of(hook: Any) -> types.CodeType | None:
    """The code of the implementation that is called first, for an error that comes before any line of it runs."""
    implementations: Sequence[Any] = hook.get_hookimpls()
    return _code(implementations[-1].function) if implementations else None


def _code_of_method(framework: object, method: str) -> types.CodeType | None:
    return _code(getattr(framework, method, None))


def _code(function: object) -> types.CodeType | None:
    """The code of a plain function or method, decorated or not; None for any other callable."""
    wrapped = getattr(function, "__wrapped__", function)
    code = getattr(wrapped, "__code__", None)
    return code if type(code) is types.CodeType else None
