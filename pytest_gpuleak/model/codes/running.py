"""Codes of what still runs or waits. Their inspectors stand in `explain.hints.tasks`."""

from __future__ import annotations

from typing import Final

from pytest_gpuleak.model.codes.entry import Code

RUNNING: Final = (
    Code(
        "GL401",
        "thread still running",
        "A thread, timer or executor that the test started and did not end.",
        """
          import threading

          import torch


          def work(batch, stop):
              stop.wait(60)


          def test_worker():
              stop = threading.Event()
        -     threading.Thread(target=work, args=(torch.ones(64, 64), stop), daemon=True).start()
        +     thread = threading.Thread(target=work, args=(torch.ones(64, 64), stop), daemon=True)
        +     thread.start()
        +     stop.set()
        +     thread.join()
        """,
        "A thread keeps its function's arguments and locals until the function returns.",
        """
        Tell it to stop and `join()` it before the test ends; `cancel()` a timer; leave an executor by `with`; read a
        data loader to its end or drop its iterator.
        """,
    ),
    Code(
        "GL402",
        "asyncio task that has not ended",
        "`create_task()` or `run_coroutine_threadsafe()`, on a loop that outlives the test.",
        """
          import asyncio

          import torch

          LOOP = asyncio.new_event_loop()


          async def work():
              batch = torch.ones(64, 64)
              await asyncio.sleep(3600)
              return batch


          def test_task():
        -     LOOP.create_task(work())
        +     task = LOOP.create_task(work())
              LOOP.run_until_complete(asyncio.sleep(0))
        +     task.cancel()
        +     LOOP.run_until_complete(asyncio.wait([task]))
        """,
        "A task that waits keeps the locals of its coroutine. The loop keeps the task as long as what it waits for.",
        "Await it, or call its `cancel()` and await that before the loop is left.",
    ),
    Code(
        "GL403",
        "coroutine that has not ended",
        "A coroutine that was started, is stored, and is never awaited to its end.",
        """
          import types

          import torch

          PENDING = []


          @types.coroutine
          def pause():
              yield


          async def step():
              batch = torch.ones(64, 64)
              await pause()
              return batch


          def test_step():
              coroutine = step()
              coroutine.send(None)
              PENDING.append(coroutine)
        +     coroutine.close()
        """,
        "A suspended coroutine keeps its locals until it ends or is closed.",
        "Await it to its end, or call its `close()`.",
    ),
    Code(
        "GL404",
        "asynchronous generator not read to its end",
        "An `async def` function with `yield` whose iteration was broken off.",
        """
          import asyncio

          import torch

          LOOP = asyncio.new_event_loop()
          STREAMS = []


          async def batches():
              batch = torch.ones(64, 64)
              while True:
                  yield batch.shape


          def test_stream():
              stream = batches()
              LOOP.run_until_complete(stream.__anext__())
              STREAMS.append(stream)
        +     LOOP.run_until_complete(stream.aclose())
        """,
        "A suspended generator keeps its locals until it ends or is closed.",
        "Read it to its end, or await its `aclose()`.",
    ),
    Code(
        "GL405",
        "generator not read to its end",
        "A generator, or a context manager made of one, that waits at a `yield` and is stored.",
        """
          import torch

          ITERATORS = []


          def batches():
              batch = torch.ones(64, 64)
              while True:
                  yield batch.shape


          def test_first():
              iterator = batches()
              next(iterator)
              ITERATORS.append(iterator)
        +     iterator.close()
        """,
        "A suspended generator keeps its locals until it ends or is closed.",
        "Read it to its end or call its `close()`; enter a context manager by `with`.",
    ),
    Code(
        "GL406",
        "scheduled call that still waits",
        "`call_later()` of an event loop, or `submit()` to an executor that has not come to it.",
        """
          import asyncio

          import torch

          LOOP = asyncio.new_event_loop()


          def test_later():
              batch = torch.ones(64, 64)
        -     LOOP.call_later(3600, lambda: batch)
        +     LOOP.call_later(3600, lambda: batch).cancel()
        """,
        "The loop or the executor keeps the function and its arguments until it has called it.",
        """
        Keep what `call_later` or `call_soon` returned and call its `cancel()`; leave the executor by `with`, or call its
        `shutdown(cancel_futures=True)`.
        """,
    ),
    Code(
        "GL407",
        "finished future keeps its result",
        "A list of futures or tasks that is never emptied.",
        """
          import concurrent.futures

          import torch

        - FUTURES = []
        + SUMS = []


          def test_submit():
              with concurrent.futures.ThreadPoolExecutor(1) as pool:
        -         FUTURES.append(pool.submit(torch.ones, 64, 64))
        +         SUMS.append(pool.submit(torch.ones, 64, 64).result().sum().item())
        """,
        """
        A future keeps its result as long as it lives, or its exception, whose traceback keeps the locals of the function
        that failed.
        """,
        "Take what is needed from it, and drop the future.",
    ),
)
