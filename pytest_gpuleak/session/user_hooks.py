"""Call the hooks that a conftest.py or a plugin implements for the check, so that their errors cost no verdict."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.adapters.answers import complete
from pytest_gpuleak.adapters.guarded import METHODS
from pytest_gpuleak.adapters.guarded_framework import ArraysAlone, is_whole, missing_members
from pytest_gpuleak.engine.stages import ARRAYS_HOOK, SETTLE_HOOK, code_of, guard_arrays, guard_framework
from pytest_gpuleak.session.frameworks import shared_frameworks
from pytest_gpuleak.session.peak_hooks import shared_probes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from pytest_gpuleak.adapters.probe_protocol import DeviceProbe
    from pytest_gpuleak.adapters.protocol import Framework, SettleStep
    from pytest_gpuleak.engine.stages import Safeguards
    from pytest_gpuleak.session.faults import Faults


_UNSTARTED: Final[dict[type, str]] = {
    types.CoroutineType: "cr_code",
    types.GeneratorType: "gi_code",
    types.AsyncGeneratorType: "ag_code",
}
"""What calling a hook with `async` or a `yield` returns, and the attribute that has its code."""


def steps_of_settle_hook(config: pytest.Config, safeguards: Safeguards, nodeid: str) -> Sequence[SettleStep]:
    """Return the user's own way to free memory, if there is one; the hook receives `nodeid`."""
    if not config.hook.pytest_gpuleak_settle.get_hookimpls():
        return ()
    from pytest_gpuleak.engine.settle.steps import Call

    return (Call(lambda: call_settle_hook(config, safeguards, nodeid)),)


def call_settle_hook(config: pytest.Config, safeguards: Safeguards, nodeid: str) -> None:
    """Call `pytest_gpuleak_settle` for the suspected test or fixture, for a limited time."""
    hook = config.hook.pytest_gpuleak_settle

    answers: list[Any] = []

    def call() -> None:
        answers.extend(hook(config=config, nodeid=nodeid))

    with safeguards.guard(SETTLE_HOOK, nodeid, _code_of(hook)):
        safeguards.bounded(call, SETTLE_HOOK.name, "look at what the hook waits for")
    for answer in answers:
        # With `async` or a `yield`, its body has not run.
        name = _UNSTARTED.get(type(answer))
        if name is not None:
            with safeguards.guard(SETTLE_HOOK, nodeid, getattr(answer, name)):
                if type(answer) is types.CoroutineType:
                    answer.close()
                raise TypeError("it is a generator or a coroutine, whose body never runs; accepted is a plain function")


def bring_frameworks(config: pytest.Config, faults: Faults, safeguards: Safeguards) -> list[DeviceProbe]:
    """Add the frameworks of `pytest_gpuleak_arrays` to the run's, behind guards; return the probes of their devices."""
    hook = config.hook.pytest_gpuleak_arrays
    answers: list[Any] = []
    with faults.guard(ARRAYS_HOOK, "", _code_of(hook)):
        answers = hook(config=config)
    frameworks, probes = shared_frameworks(config), shared_probes(config)
    new: list[DeviceProbe] = []
    for answer in answers:
        if type(answer) not in (list, tuple):
            kind = type(answer).__name__
            faults.add(ARRAYS_HOOK, f"it returned an object of type {kind}, accepted is a list of frameworks", "")
            continue
        for given in answer:
            with faults.guard(ARRAYS_HOOK, ""):
                framework = _guarded(given, safeguards)
                frameworks.add(framework)
                devices = framework.devices
                if devices is not None:
                    probes.append(devices)
                    new.append(devices)
    return new


def _guarded(given: Any, safeguards: Safeguards) -> Framework:
    """Raise TypeError for an object that is neither a framework nor a framework's arrays."""
    if is_whole(given):
        missing = missing_members(given)
        if missing:
            raise TypeError(
                f"{type(given).__name__} has no {missing[0]} and lacks {len(missing)} members in all, "
                "which it has if it is derived from pytest_gpuleak.adapters.protocol.Framework"
            )
        return guard_framework(given, safeguards)
    return ArraysAlone(guard_arrays(complete(given, METHODS), safeguards))


def _code_of(hook: Any) -> types.CodeType | None:
    """Return the code of the first implementation, for an error before any of its lines runs."""
    implementations: Sequence[Any] = hook.get_hookimpls()
    return code_of(implementations[-1].function) if implementations else None
