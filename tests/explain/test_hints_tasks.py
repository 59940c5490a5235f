"""Hints on what still runs or waits: threads, tasks, coroutines, generators, futures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.explain.hints import tasks
from tests.support.leaks import CLOSURE, hint_for, leak, trail

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding

pytestmark = pytest.mark.newest

THREAD = "thread 'Thread-3 (work)' in app.Loader.work: local 'batch'"
COROUTINE = (".cr_frame.f_locals['x']", "frame of app.load")


@pytest.mark.parametrize(
    ("finding", "start", "remedy"),
    [
        (
            leak(THREAD, kind="thread"),
            "The thread 'Thread-3 (work)' still runs and keeps its local `batch`",
            "`join()`",
        ),
        (
            leak("thread 'loader'", (".queue", "app.Loader"), kind="thread"),
            "The thread 'loader' still runs",
            "`join()`",
        ),
        (
            leak("app.LOCAL", (".batch", "threading.local, in another thread")),
            "Another thread has set `app.LOCAL.batch`",
            "`join()`",
        ),
        (
            leak("thread 'Thread-7'", (".function", "threading.Timer"), CLOSURE, kind="thread"),
            "The timer 'Thread-7' still waits",
            "`cancel()`",
        ),
        (
            leak("thread 'ThreadPoolExecutor-2_0' in app.work: local 'x'", kind="thread"),
            "The executor's thread 'ThreadPoolExecutor-2_0'",
            "`shutdown(wait=True)`",
        ),
        (
            leak("thread 'Thread-9 (_pin_memory_loop)' in _pin_memory_loop: local 'r'", kind="thread"),
            "The DataLoader's thread",
            "drop the iterator",
        ),
        (
            leak("asyncio task 'Task-7' in app.load", (": local 'x'", "frame of app.load"), kind="thread"),
            "An asyncio task that has not ended keeps the locals of `app.load`",
            "`cancel()`",
        ),
        (
            leak("asyncio task in app.load, thread 'loop'", (": local 'x'", "frame of app.load"), kind="thread"),
            "An asyncio task in the thread 'loop' has not ended and keeps the locals of `app.load`",
            "`run_coroutine_threadsafe`",
        ),
        (
            leak(
                "app.LOOP", ("._scheduled", "app.Loop"), ("[1]", "list"), ("._callback", "asyncio.TimerHandle"), CLOSURE
            ),
            "A call scheduled in the event loop `app.LOOP` waits",
            "`cancel()`",
        ),
        (
            leak("app.POOL", ("._work_queue", "app.Pool"), (".fn", "concurrent.futures.thread._WorkItem"), CLOSURE),
            "A call that waits in the executor `app.POOL` keeps",
            "`shutdown(cancel_futures=True)`",
        ),
        (
            leak("app.QUEUES", ("[0]", "list"), (".fn", "concurrent.futures.thread._WorkItem"), CLOSURE),
            "A call that waits in an executor keeps",
            "`shutdown(cancel_futures=True)`",
        ),
        (
            leak("app.TASKS", ("[4]", "list"), (".get_coro()", "asyncio.Task"), COROUTINE),
            "An asyncio task that has not ended keeps the locals of `app.load`",
            "`cancel()`",
        ),
        (
            leak("app.WAITING", ("[0]", "list"), COROUTINE),
            "A suspended coroutine kept in `app.WAITING` keeps its local `x`",
            "`close()`",
        ),
        (
            leak("app.STREAM", (".ag_frame.f_locals['x']", "frame of app.stream")),
            "A suspended asynchronous generator kept in `app.STREAM` keeps its local `x`",
            "`aclose()`",
        ),
        (
            leak(
                "asyncio task 'Task-27'",
                (".get_coro()", "asyncio.Task"),
                (" (inside async_generator_athrow)", "async_generator_athrow"),
                (".ag_frame.f_locals['x']", "frame of app.stream"),
                kind="thread",
            ),
            "The event loop has still to close the asynchronous generator `app.stream`",
            "`aclose()`",
        ),
        (
            leak(
                "app.BATCHES",
                ("['train']", "dict"),
                (".gi_frame.f_locals['x']", "frame of app.batches"),
                ("[0]", "list"),
            ),
            "A suspended generator kept in `app.BATCHES` keeps its local `x`",
            "`close()`",
        ),
        (
            leak(
                "app.MODE", (".gen", "contextlib._GeneratorContextManager"), (".gi_frame", "generator"), ("[0]", "list")
            ),
            "The context manager in `app.MODE` was entered and not left",
            "`with`",
        ),
        (
            leak("app.DONE", ("[2]", "list"), ("._result", "concurrent.futures._base.Future")),
            "A finished future kept in `app.DONE` keeps its result",
            "drop the future",
        ),
        (
            leak(
                "app.DONE",
                (".exception()", "asyncio.Task"),
                (".__traceback__", "ValueError"),
                (".tb_frame", "traceback"),
            ),
            "A finished future kept in `app.DONE` keeps its exception",
            "drop the future",
        ),
    ],
)
def test_what_still_runs_is_named_with_the_way_to_end_it(finding: Finding, start: str, remedy: str) -> None:
    hint = hint_for(finding)
    assert hint is not None
    assert hint.startswith(start)
    assert remedy in hint


def test_the_main_thread_is_not_to_be_joined() -> None:
    assert hint_for(leak("thread 'MainThread'", (".keep", "threading.Thread"), kind="thread")) is None


def test_a_thread_pool_by_a_name_of_the_users_own_is_a_thread() -> None:
    finding = leak("thread 'pool_0' in app.work: local 'x'", kind="thread")
    assert "executor" not in str(hint_for(finding))


def test_a_global_named_like_a_thread_is_none() -> None:
    assert tasks.running_thread(trail(leak(THREAD))) is None


def test_the_task_that_a_coroutine_awaits_is_not_the_one_that_has_not_ended() -> None:
    finding = leak("app.C", COROUTINE, (".get_coro()", "asyncio.Task"))
    assert tasks.asyncio_task(trail(finding)) is None


def test_a_generator_that_native_code_keeps_cannot_be_closed_by_the_reader() -> None:
    finding = leak("C++", (".gi_frame.f_locals['x']", "frame of f"), kind="native", text="C++ -> generator")
    assert hint_for(finding) is None


def test_an_attribute_named_result_is_no_future() -> None:
    assert tasks.finished_future(trail(leak("app.JOB", ("._result", "app.Job")))) is None
