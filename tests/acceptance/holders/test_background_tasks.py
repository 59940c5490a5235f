"""What an event loop in a background thread keeps, and what waits in a loop or an executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.interpreter

HEAD = """
    import asyncio, threading, time

    _loop = asyncio.new_event_loop()
    threading.Thread(target=_loop.run_forever, name="background-loop", daemon=True).start(); BEGUN = threading.Event()

    async def keep(size):
        probe = Buffer(size); BEGUN.set()
        await asyncio.sleep(3600)
        del probe
"""


def test_tasks_of_a_loop_in_a_daemon_thread(run: Runner) -> None:
    ran = run(
        HEAD
        + """
    def test_submit():
        asyncio.run_coroutine_threadsafe(keep(64), _loop)
        time.sleep(0.2)

    def test_between():
        time.sleep(0.1)

    def test_submit_no_wait():
        BEGUN.clear()
        asyncio.run_coroutine_threadsafe(keep(64), _loop)
        BEGUN.wait(10)

    def test_two_alike():
        async def both():
            await asyncio.gather(keep(64), keep(64))

        asyncio.run_coroutine_threadsafe(both(), _loop)
        time.sleep(0.2)

    def test_named():
        async def start():
            return asyncio.create_task(keep(64), name="keeper")

        asyncio.run_coroutine_threadsafe(start(), _loop).result()
        time.sleep(0.2)

    def test_last():
        time.sleep(0.2)
    """,
        apart=True,
    )
    assert ran.verdicts == {
        "test_submit": "leaked",
        "test_between": "clean",
        "test_submit_no_wait": "leaked",
        "test_two_alike": "leaked",
        "test_named": "leaked",
        "test_last": "clean",
    }
    text = "asyncio task in test_it.keep, thread 'background-loop': local 'probe'"
    for name, count in (("test_submit", 1), ("test_submit_no_wait", 1), ("test_two_alike", 2)):
        finding = ran.finding(name)
        assert (finding["holder"]["text"], finding["kind"], finding["count"]) == (text, "growing", count)
        assert (finding["holder"]["kind"], finding["holder"]["file"], finding["holder"]["line"]) == (
            "thread",
            "test_it.py",
            8,
        )
        assert "`run_coroutine_threadsafe`" in finding["hint"]
    assert ran.holder("test_named").startswith("asyncio task 'keeper' in test_it.keep, thread 'background-loop'")


def test_tasks_of_the_main_loop_in_a_global_set(run: Runner) -> None:
    ran = run(
        HEAD
        + """
    TASKS, MAIN = set(), asyncio.new_event_loop()

    def test_set():
        async def go():
            TASKS.add(asyncio.create_task(keep(64)))
            await asyncio.sleep(0)

        MAIN.run_until_complete(go())
    """,
        apart=True,
    )
    finding = ran.finding("test_set")
    assert finding["holder"]["text"] == "test_it.TASKS (item of set).get_coro().cr_frame.f_locals['probe']"
    assert [other["text"] for other in finding["other_holders"]] == ["asyncio task in test_it.keep: local 'probe'"]
    assert "`cancel()`" in finding["hint"]


def test_calls_that_wait(run: Runner) -> None:
    ran = run(
        HEAD
        + """
    import concurrent.futures

    POOL, STOP = concurrent.futures.ThreadPoolExecutor(1), threading.Event()
    FUTURES = []

    def test_call_later():
        kept = Buffer(64)
        _loop.call_soon_threadsafe(_loop.call_later, 3600, lambda: kept)
        time.sleep(0.1)

    def test_work_item():
        kept = Buffer(64)
        POOL.submit(STOP.wait, 60)
        POOL.submit(lambda: kept)

    def test_end():
        STOP.set()

    def test_future():
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            FUTURES.append(pool.submit(Buffer, 64))
    """,
        apart=True,
    )
    starts = {
        "test_call_later": "A call scheduled in the event loop `test_it._loop` waits",
        "test_work_item": "A call that waits in the executor `test_it.POOL`",
        "test_future": "A finished future kept in `test_it.FUTURES` keeps its result",
    }
    for name, start in starts.items():
        assert ran.finding(name)["hint"].startswith(start)
        assert ran.finding(name)["kind"] == "growing"
