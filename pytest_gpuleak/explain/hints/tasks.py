"""Hints on what still runs or waits: threads, asyncio tasks, coroutines, generators, and futures with a result."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pytest_gpuleak.explain.edges.interpreter import ANOTHER_THREAD
from pytest_gpuleak.explain.hints.trail import code, cut

if TYPE_CHECKING:
    from pytest_gpuleak.explain.hints.trail import Trail

_THREAD: Final = re.compile(r"thread (?P<name>.+?)(?: in (?P<function>\S+): local '(?P<local>\w+)')?")
"""Root of a thread (`heap.frames.RunningFrame.describe`, `explain.roots.roots`)."""

_POOL: Final = re.compile(r"'ThreadPoolExecutor-\d+_\d+'")
"""Names that an executor gives its threads (Lib/concurrent/futures/thread.py, ThreadPoolExecutor.__init__)."""

_SUSPENDED: Final = re.compile(r"\.(?P<kind>gi|cr|ag)_frame(?:\.f_locals\['(?P<local>\w+)'\])?")
_TASK: Final = re.compile(r"asyncio task(?: '.*?')? in (?P<function>[^\s,]+)(?:, thread (?P<thread>.+))?")
"""Root of a task that its event loop alone holds (`explain.roots.library_names`)."""

_HANDLES: Final = ("asyncio.events.Handle", "asyncio.events.TimerHandle", "asyncio.Handle", "asyncio.TimerHandle")
_SCHEDULES: Final = ("._scheduled", "._ready")
"""Attributes in which an event loop keeps scheduled calls (Lib/asyncio/base_events.py)."""

_WORK_ITEM: Final = "concurrent.futures.thread._WorkItem"
_QUEUES: Final = ("._work_queue",)
_FUTURES: Final = frozenset({"concurrent.futures._base.Future", "asyncio.Future", "asyncio.Task"})
_RESULTS: Final = ("._result", ".result()")
_ERRORS: Final = ("._exception", ".exception()", ".exception().__traceback__")


def running_thread(trail: Trail) -> str | None:
    """Recognise a thread that was not joined, a timer not cancelled, an executor not shut down."""
    other = trail.first(lambda step: step.type == f"threading.local, in {ANOTHER_THREAD}")
    if other is not None and trail.named:
        return (
            f"Another thread has set {trail.owner(other + 1)}, a value of its own, and still runs: let it delete that, "
            "or tell it to stop and `join()` it before the test ends."
        )
    found = _THREAD.fullmatch(trail.root) if trail.kind == "thread" else None
    if found is None or found["name"] == "'MainThread'":
        return None
    name, function, local = cut(found["name"]), found["function"] or "", found["local"]
    if trail.type(0) == "threading.Timer":
        return f"The timer {name} still waits and keeps its function: call its `cancel()` in teardown, then `join()`."
    if _POOL.fullmatch(found["name"]):
        return (
            f"The executor's thread {name} still runs and keeps what it works on: leave the executor by `with`, or "
            "call its `shutdown(wait=True)` in teardown."
        )
    if function == "_pin_memory_loop":  # torch/utils/data/dataloader.py: the iterator's end stops the thread
        return (
            f"The DataLoader's thread {name} lives as long as the loader's iterator: read it to its end, or drop the "
            "iterator in teardown."
        )
    kept = f"its local {code(local)}" if local else "what it was given"
    return f"The thread {name} still runs and keeps {kept}: tell it to stop and `join()` it before the test ends."


def asyncio_task(trail: Trail) -> str | None:
    """Recognise an asyncio task that has not ended: its loop or its owner keeps the coroutine's locals."""
    running = _TASK.fullmatch(trail.root) if trail.kind == "thread" else None
    task, frame = trail.find(".get_coro()", "._coro"), trail.match(_SUSPENDED)
    if running is not None:
        function = code(running["function"])
    elif task is not None and frame is not None and frame[0] > task and frame[1]["kind"] == "cr":
        function = _function(trail, frame[0])
    else:
        return None
    if running is not None and running["thread"]:
        return (
            f"An asyncio task in the thread {cut(running['thread'])} has not ended and keeps the locals of {function}: "
            "call `cancel()` of what `run_coroutine_threadsafe` returned, or end the loop, before the test ends."
        )
    return (
        f"An asyncio task that has not ended keeps the locals of {function}: await it, or call its "
        "`cancel()` and await that before the loop is left."
    )


def coroutine(trail: Trail) -> str | None:
    """Recognise a coroutine that was started and neither awaited to its end nor closed."""
    return _suspended(trail, "cr", "coroutine", "await it to its end or call its `close()`")


def async_generator(trail: Trail) -> str | None:
    """Recognise an asynchronous generator that was not read to its end. Once dropped, it is its loop's to close, in a task."""
    index, match = trail.match(_SUSPENDED) or (0, None)
    if match is not None and match["kind"] == "ag" and trail.kind == "thread" and trail.root.startswith("asyncio task"):
        return (
            f"The event loop has still to close the asynchronous generator {_function(trail, index)}, which keeps its "
            "locals: read it to its end, or await its `aclose()`."
        )
    return _suspended(trail, "ag", "asynchronous generator", "read it to its end or await its `aclose()`")


def generator(trail: Trail) -> str | None:
    """Recognise a generator that waits at a `yield`: of a context manager that was not left, or on its own."""
    found = trail.match(_SUSPENDED)
    if found is not None and trail.named and trail.type(found[0] - 1) == "contextlib._GeneratorContextManager":
        return (
            f"The context manager in {trail.container_of(found[0] - 1)} was entered and not left, and keeps the locals of "
            f"{_function(trail, found[0])}: use it by `with`, or an ExitStack closed in teardown."
        )
    return _suspended(trail, "gi", "generator", "read it to its end or call its `close()` in teardown")


def scheduled_call(trail: Trail) -> str | None:
    """Recognise a call that an event loop or an executor still has to make."""
    index = trail.first(lambda step: step.type in _HANDLES or step.type == _WORK_ITEM)
    if index is None or not trail.named:
        return None
    if trail.type(index) == _WORK_ITEM:
        return (
            f"A call that waits in {_before(trail, index, _QUEUES, 'executor')} keeps its function and arguments: "
            "leave the executor by `with`, or call its `shutdown(cancel_futures=True)` in teardown."
        )
    return (
        f"A call scheduled in {_before(trail, index, _SCHEDULES, 'event loop')} waits and keeps its function: "
        "keep what `call_later` or `call_soon` returned and call its `cancel()` in teardown."
    )


def _before(trail: Trail, index: int, edges: tuple[str, ...], noun: str) -> str:
    """Name the owner of the last of these references before a step, with the noun; the noun alone without a name."""
    found = [position for position in range(index) if trail.edge(position) in edges]
    return f"the {noun} {trail.owner(found[-1])}" if found else f"an {noun}"


def finished_future(trail: Trail) -> str | None:
    """Recognise a finished future or task: it keeps its result or exception as long as it lives."""
    index = trail.first(lambda step: step.type in _FUTURES and step.edge in _RESULTS + _ERRORS)
    if index is None or not trail.named:
        return None
    kept = "exception, and by its traceback the locals of its function"
    return (
        f"A finished future kept in {trail.container_of(index)} keeps its "
        f"{'result' if trail.edge(index) in _RESULTS else kept}: take what is needed from it and drop the future."
    )


def _suspended(trail: Trail, kind: str, noun: str, remedy: str) -> str | None:
    index, match = trail.match(_SUSPENDED) or (0, None)
    if match is None or match["kind"] != kind or not trail.named:
        return None
    local = f" {code(match['local'])}" if match["local"] else "s"
    return f"A suspended {noun} kept in {trail.container_of(index)} keeps its local{local}: {remedy}."


def _function(trail: Trail, index: int) -> str:
    return code(trail.type(index).removeprefix("frame of "))
