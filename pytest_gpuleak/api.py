"""Use the engine without pytest: in a notebook, a debugger, a training script, or a test of one function."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import sys
from typing import TYPE_CHECKING

from pytest_gpuleak.adapters.host.modes import host_probes
from pytest_gpuleak.adapters.registry import own_frameworks, own_reference_finders
from pytest_gpuleak.engine.detect.counters import CounterWatch
from pytest_gpuleak.engine.run_tracker import RunTracker
from pytest_gpuleak.engine.session_knowledge import SessionKnowledge
from pytest_gpuleak.engine.stages import Unguarded
from pytest_gpuleak.engine.subject import FunctionSubject, Suspect
from pytest_gpuleak.engine.suspect import SuspectCheck
from pytest_gpuleak.engine.suspect_evidence import FirstRun
from pytest_gpuleak.explain.edge_to_edit import edge_to_edit
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.collector import PausedCollector, whole_heap
from pytest_gpuleak.heap.frames import belongs_to_plugin
from pytest_gpuleak.heap.interpreter import TEMPORARY_REFERENCES, UNCOUNTED, getrefcount
from pytest_gpuleak.model.findings import Finding, Holder
from pytest_gpuleak.model.peak_parts import Peak, located
from pytest_gpuleak.model.policy import Policy
from pytest_gpuleak.model.source_files import is_user_file
from pytest_gpuleak.model.text import parse_size
from pytest_gpuleak.model.version import __version__  # noqa: F401 - a public name of the package
from pytest_gpuleak.results import Holders, LeakError, Leaks, PeakExplanation

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator


def explain_peak(function: Callable[..., object], *args: object) -> PeakExplanation:
    """Tell what filled the memory when it peaked, while a function ran: what it was used for, and which line made it.

    ::

        print(explain_peak(train_step, model, batch))

    The function is called once, under torch's modes, which make each operator some 30 us slower, and its result is
    dropped. Its errors reach the caller. Tensors of other frameworks are not told, nor is anything if torch has not been
    imported before the call.

    Raises:
        ValueError: the function is a coroutine or generator function.
    """
    _refuse_unstarted(function)
    with _recorded() as found:
        function(*args)
    return PeakExplanation(found)


@contextlib.contextmanager
def _recorded() -> Iterator[list[Peak]]:
    """Record the block's peaks; the list has them once it has ended."""
    root = os.getcwd()  # noqa: PTH109 - as text
    recorder = own_frameworks().peak_recorder(lambda file: is_user_file(file, root))
    found: list[Peak] = []
    if recorder is None:
        yield found
        found.append(Peak("", 0, lacks=("torch had not been imported",)))
        return
    with recorder:
        yield found
    found.extend(located(recorder.peak(device), root) for device in recorder.devices() or ("",))


@contextlib.contextmanager
def watch(*, peak: bool = False) -> Iterator[Leaks]:
    """Tell which arrays a block of code leaves behind, and who holds them; with `peak`, what filled the memory too.

    ::

        with watch() as leaks:
            train_step()
        print(leaks)

    A block runs once, so its findings are ``unconfirmed``: they include what a cache or a local variable of the caller
    holds. Use `assert_no_leak` to tell growth from caches. A block that raises is not judged, since the traceback holds
    its locals: `Leaks.why_unchecked` and ``print(leaks)`` say so.

    With `peak`, ``leaks.peak`` is as `explain_peak` tells of a function. Tensors that C++ alone holds, such as those that a
    graph has saved, then have Python objects, and are listed with the findings.
    """
    findings: list[Finding] = []
    leaks = Leaks(findings)
    with _tracker() as (tracker, knowledge):
        policy = Policy(host_bytes=sys.maxsize)
        check = SuspectCheck(Suspect(tracker, knowledge, FunctionSubject(), policy))
        tracker.begin_run()
        try:
            if peak:
                with _recorded() as peaks:
                    yield leaks
                leaks.peak = PeakExplanation(peaks)
            else:
                yield leaks
        except BaseException as error:
            leaks.why_unchecked = f"the block raised {type(error).__name__}"
            raise
        findings.extend(_check(tracker, check, policy))
    leaks.why_unchecked = None


def assert_no_leak(
    function: Callable[[], object],
    repeat: int = 3,
    *,
    tensors: int = 0,
    mb: float | str = 0,
    retained_mb: float | str = 1,
) -> None:
    """Assert that calling a function does not leave more arrays behind each time.

    ::

        assert_no_leak(lambda: train_step(model, batch))

    The function is called once, which fills its caches, then `repeat` times more; its result is dropped. Arrays that
    every further call adds are a leak, however small; those that only the first call left fail from `retained_mb` up.
    A function that leaks is called once more, traced, for the lines that make what it leaves.

    Args:
        function: called without arguments.
        repeat: further calls, 1 or more.
        tensors: arrays a call may leave behind growing.
        mb: MiB (or a size such as ``"512KiB"``) per device that a call may leave behind growing.
        retained_mb: MiB (or a size) per device from which what is left behind and does not grow fails.

    Raises:
        LeakError: the function leaks.
        ValueError: `repeat`, `tensors` or a size is out of range, or the function is a coroutine or generator function.
    """
    if type(repeat) is not int or repeat < 1:
        raise ValueError(f"repeat={_shown(repeat)}: a number of further calls, 1 or more, is accepted")
    if type(tensors) is not int or tensors < 0:
        raise ValueError(f"tensors={_shown(tensors)}: a number of arrays, 0 or more, is accepted")
    _refuse_unstarted(function)
    policy = Policy(
        growing_tensors=tensors,
        growing_bytes=_size("mb", mb),
        retained_bytes=_size("retained_mb", retained_mb),
        host_bytes=sys.maxsize,  # of the host's memory, arrays alone are judged
        confirm=repeat,
    )
    with _tracker() as (tracker, knowledge):
        check = SuspectCheck(Suspect(tracker, knowledge, FunctionSubject(function), policy))
        tracker.begin_run()
        function()
        failed = [found for found in _check(tracker, check, policy) if found.failed]
    if failed:
        raise LeakError(failed)


def _shown(given: object) -> str:
    """Write a value that was not accepted: that of an array may be pages long, and take a device to print."""
    return repr(given) if type(given) in (int, float, str, bool) else f"<{type(given).__name__}>"


def _refuse_unstarted(function: Callable[..., object]) -> None:
    """Raise `ValueError` for a function of which a call runs nothing, so that it would always be clean."""
    generator = inspect.isgeneratorfunction(function)
    if generator or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        instead = "lambda: list(work())" if generator else "lambda: asyncio.run(work())"
        raise ValueError(
            f"calling an async function or a generator runs none of it: pass what does, such as `{instead}`"
        )


def _size(name: str, given: float | str) -> int:
    try:
        return parse_size(given)
    except ValueError as error:
        message = f"{name}={_shown(given)}: {error}; a number of MiB or a size such as '512KiB' is accepted"
        raise ValueError(message) from None


def _check(tracker: RunTracker, check: SuspectCheck, policy: Policy) -> tuple[Finding, ...]:
    with contextlib.ExitStack() as paused:
        # An automatic collection would free cycles before they are read.
        paused.enter_context(PausedCollector())
        growth = tracker.counters.end()
        arrays = tracker.left_arrays()
        if not (arrays or tracker.is_worth_a_check(growth, policy)):
            return ()
        return check.check(FirstRun(arrays, growth, seen=paused.close))


@contextlib.contextmanager
def _tracker() -> Iterator[tuple[RunTracker, SessionKnowledge]]:
    """Create a tracker for this process, even within the epoch of a test that the plugin checks."""
    safeguards = Unguarded()
    # NumPy's arrays are found by the growth of the heap.
    tracker = RunTracker(own_frameworks(), safeguards, CounterWatch((), host_probes(("heap",))))
    tracker.start(Policy())
    try:
        knowledge = SessionKnowledge(os.getcwd(), safeguards)  # noqa: PTH109 - as text
        knowledge.in_tests = False
        knowledge.programs = tracker.frameworks.programs_alive()
        yield tracker, knowledge
    finally:
        tracker.stop()


SEARCH_STEPS = 50_000_000
"""Steps (`heap.budget`) of a search by default."""

GRAPH_STEPS = 10_000_000
"""Steps of counting what a graph retains."""

_CALL_ALONE = "the call of holders() alone"
"""Root of what was made for the call, as in ``holders(make())``, and is freed when it returns."""


def holders(value: object, *, steps: int = SEARCH_STEPS) -> Holders:
    """Tell who keeps `value` alive.

    ::

        >>> pytest_gpuleak.holders(loss)
        held by  app.metrics.HISTORY[0]['loss']  (module global, app/metrics.py:3)

    The caller's variable that was passed does not count if it is a global of the caller's module, as in a notebook. A
    local variable counts if nothing else holds the object.

    Args:
        value: any live object; numbers, strings and the like are shared too widely for an answer.
        steps: objects and references that the search meets at most; it stops with what it has.

    Returns:
        At least one holder: of kind ``native`` or ``unknown`` if no root leads to the object, of kind ``frame`` with a text
        that says so if the call alone keeps it, as in ``holders(make())``.
    """
    from pytest_gpuleak.explain.explain import explain
    from pytest_gpuleak.explain.unaccounted import owner_counter

    targets, finders = [value], own_reference_finders()
    namespace = _namespace_of_caller()
    known = set() if namespace is None else {(namespace, id(value))}
    with whole_heap():
        (found,) = explain(targets, budget=Budget(steps), known=known, frameworks=finders)
        if known and not found.holder.path and not found.holder.named:  # only that variable
            (found,) = explain(targets, budget=Budget(steps), frameworks=finders)
    graph = own_frameworks().graph_size(targets, Budget(GRAPH_STEPS))
    targets.clear()
    rootless = found.holder.kind == "native" and not found.holder.path
    if rootless and getrefcount(value) <= TEMPORARY_REFERENCES < UNCOUNTED and not owner_counter(finders)(value):
        return Holders([Holder("frame", _CALL_ALONE, _CALL_ALONE)], graph)
    return Holders([_marked(holder) for holder in (found.holder, *found.others)], graph)


def _namespace_of_caller() -> int | None:
    """Return the id of the caller's globals, if the caller is module code and no function."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and belongs_to_plugin(frame.f_globals):
        frame = frame.f_back
    return id(frame.f_globals) if frame is not None and frame.f_locals is frame.f_globals else None


def _marked(holder: Holder) -> Holder:
    return dataclasses.replace(holder, deciding=edge_to_edit(holder))
