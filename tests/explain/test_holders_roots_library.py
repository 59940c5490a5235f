"""What the standard library keeps in its own books, by the names that a reader knows."""

from __future__ import annotations

import asyncio
import enum
import logging
import logging.handlers
import multiprocessing
import multiprocessing.util
import sys
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.explain.process_handles import holders_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuleak.model.findings import Holder

pytestmark = pytest.mark.interpreter


class Thing:
    """Stands for a tensor."""


class Pool:
    payload: object = None

    def close(self, *_: object, **__: object) -> None:
        pass


class Colour(enum.Enum):
    RED = ("red", [0])
    BLUE = [0]  # noqa: RUF012  # a value that cannot be hashed is kept apart


def save(*_: object, **__: object) -> None:
    pass


def holder_of(box: list[Any]) -> Holder:
    """The holder of what `box` has, the test's own frame left aside."""
    return explain(box, ignore={id(sys._getframe(1))})[0].holder


@pytest.fixture
def pool(app: Any) -> Pool:
    app.POOL = Pool()
    return app.POOL  # type: ignore[no-any-return]


def test_arguments_of_a_finaliser(app: Any, pool: Pool) -> None:
    box = [Thing(), Thing()]
    finalizer = weakref.finalize(pool, save, 1, box[0], model={"a": box[1]})
    first, second = [found.holder for found in explain(box, ignore={id(sys._getframe())})]
    finalizer.detach()
    root = f"weakref.finalize callback {__name__}.save of {__name__}.Pool"
    assert (first.kind, first.root, first.text) == ("class", root, root + ": args[1]")
    assert second.text == root + ": kwargs['model']['a']"
    assert (first.file, first.line) == (__file__, save.__code__.co_firstlineno)


def test_method_that_a_finaliser_calls(pool: Pool) -> None:
    other = Pool()
    other.payload = Thing()
    box = [other.payload]
    finalizer = weakref.finalize(pool, other.close)
    del other
    text = holder_of(box).text
    finalizer.detach()
    name = f"{__name__}.Pool"
    assert text == f"weakref.finalize callback {name}.close of {name}: func.__self__.payload"


def test_owner_of_a_finaliser_holds_a_process(app: Any, pool: Pool) -> None:
    process: Any = multiprocessing.Process()
    process._popen = types.SimpleNamespace(pid=4711)
    finalizer: Any = multiprocessing.util.Finalize(pool, save, args=(process,))
    alone = holders_of({4711})[4711]
    app.CACHE["of"] = [[[{"a manager": process}]]]
    owned = holders_of({4711})[4711]
    finalizer.cancel()
    assert alone is not None
    assert owned is not None
    assert (alone.root, owned.root) == ("multiprocessing.util._finalizer_registry", "leaky_app.CACHE")


def test_record_that_a_handler_buffers() -> None:
    box = [Thing()]
    logger = logging.getLogger("leaky.train")
    logger.propagate = False
    logger.addHandler(logging.handlers.MemoryHandler(100, flushLevel=100))
    logger.warning("%s %s", 1, box[0])
    holder = holder_of(box)
    handler: Any = logger.handlers[0]
    handler.buffer.clear()
    handler.close()
    logger.removeHandler(handler)
    assert (holder.kind, holder.root) == ("module", "logging.getLogger('leaky.train')")
    assert holder.text == "logging.getLogger('leaky.train').handlers[0].buffer[0].args[1]"


def test_patch_that_was_not_stopped(app: Any) -> None:
    app.MODEL = Thing()
    box = [app.MODEL]
    patch = mock.patch.object(app, "MODEL", 3)
    patch.start()
    holder = holder_of(box)
    patch.stop()
    assert holder.text == "unittest.mock.patch of 'MODEL', not stopped: temp_original"


@pytest.fixture
def loop(app: Any) -> Iterator[asyncio.AbstractEventLoop]:
    app.LOOP = asyncio.new_event_loop()
    yield app.LOOP
    for task in asyncio.all_tasks(app.LOOP):
        task.cancel()
        app.LOOP.run_until_complete(asyncio.gather(task, return_exceptions=True))
    app.LOOP.close()


async def load(batch: object) -> None:
    await asyncio.sleep(60)


async def outer(batch: list[object]) -> None:
    taken = batch.pop()
    await load(taken)


@pytest.mark.parametrize("pure", [False, True])
def test_task_that_its_loop_alone_holds(loop: asyncio.AbstractEventLoop, pure: bool) -> None:
    box = [Thing()]
    coroutine = load(box[0])
    task: Any
    if pure:
        from asyncio import tasks

        task = tasks._PyTask(coroutine, loop=loop, name="loader")  # type: ignore[attr-defined]
    else:
        task = loop.create_task(coroutine, name="loader")
    del coroutine
    loop.run_until_complete(asyncio.sleep(0))
    del task
    holder = holder_of(box)
    assert (holder.kind, holder.root) == ("thread", f"asyncio task 'loader' in {__name__}.load")
    assert holder.text == f"asyncio task 'loader' in {__name__}.load: local 'batch'"
    assert (holder.file, holder.line) == (__file__, load.__code__.co_firstlineno)


def test_coroutine_that_a_task_waits_for(loop: asyncio.AbstractEventLoop) -> None:
    box = [Thing()]
    loop.create_task(outer([box[0]]), name="loader")
    loop.run_until_complete(asyncio.sleep(0))
    text = holder_of(box).text
    assert text.startswith(f"asyncio task 'loader' in {__name__}.outer: ")
    assert "local 'taken'" in text or "coroutine.cr_await.cr_frame.f_locals['batch']" in text


def test_task_that_the_user_keeps_stays_the_users(app: Any, loop: asyncio.AbstractEventLoop) -> None:
    box = [Thing()]
    app.TASKS = {loop.create_task(load(box[0]))}
    loop.run_until_complete(asyncio.sleep(0))
    holder = holder_of(box)
    app.TASKS.clear()
    assert holder.text == "leaky_app.TASKS (item of set).get_coro().cr_frame.f_locals['batch']"


@pytest.mark.parametrize("member", Colour)
def test_value_of_an_enum_member(member: Colour) -> None:
    box = [Thing()]
    content: list[object] = member.value[1] if isinstance(member.value, tuple) else member.value
    content.append(box[0])
    text = holder_of(box).text
    found = eval(
        text, {"tests": sys.modules["tests"], __name__.partition(".")[0]: sys.modules[__name__.partition(".")[0]]}
    )
    content.pop()
    assert text.startswith(f"{__name__}.Colour.{member.name}.value[")
    assert found is box[0]


def test_attribute_of_an_enum_member() -> None:
    box = [Thing()]
    Colour.RED.cache = [box[0]]  # type: ignore[attr-defined]
    holder = holder_of(box)
    del Colour.RED.cache  # type: ignore[attr-defined]
    assert (holder.kind, holder.text) == ("class", f"{__name__}.Colour.RED.cache[0]")


def test_default_of_an_argument_is_named(app: Any) -> None:
    def step(first: int, second: int = 1, cache: list[object] = [], *, memo: dict[str, object] = {}) -> None:  # noqa: B006
        pass

    box = [Thing(), Thing()]
    assert step.__defaults__ is not None
    assert step.__kwdefaults__ is not None
    step.__defaults__[1].append(box[0])
    step.__kwdefaults__["memo"]["a"] = box[1]
    app.STEP = step
    name = step.__qualname__
    del step
    labels = [found.holder.path[0].type for found in explain(box, ignore={id(sys._getframe())})]
    assert labels == [f"default of argument 'cache' of {name}", f"default of argument 'memo' of {name}"]


def test_timer_that_was_not_cancelled() -> None:
    box = [Thing()]
    timer = threading.Timer(60, save, ([box[0]],))
    timer.name = "flush"
    timer.start()
    holder = holder_of(box)
    timer.cancel()
    timer.join()
    assert (holder.kind, holder.text) == ("thread", "thread 'flush'.args[0][0]")


def test_warnings_registry(app: Any) -> None:
    box = [Thing()]
    app.__warningregistry__ = {("text", box[0], 3): True}
    assert holder_of(box).text == "leaky_app.__warningregistry__ (a key)[1]"
