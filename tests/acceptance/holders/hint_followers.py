"""A program that leaks, reads the hint, does what it says, and tells whether the memory went. Run by `test_hints_followed`."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import gc
import json
import sys
import threading
import traceback
import weakref
from typing import TYPE_CHECKING, Any

import torch

from pytest_gpuleak import watch

if TYPE_CHECKING:
    from collections.abc import Callable

    Follow = Callable[[], object]

KEPT: dict[str, Any] = {}
STATS: Any = weakref.WeakKeyDictionary()
NEVER = threading.Event()
LOOP = asyncio.new_event_loop()
POOL = concurrent.futures.ThreadPoolExecutor(1)


def batch() -> Any:
    """What leaks."""
    return torch.ones(64, 64, requires_grad=True)


class Owner:
    """Keeps an array, and has a method to give away."""

    def __init__(self) -> None:
        self.batch = batch()

    def close(self) -> None:
        """Do nothing."""


def fail(given: Any) -> None:
    """Raise with the array among the locals."""
    raise ValueError(str(given.shape))


def caught() -> ValueError:
    """An exception whose traceback keeps an array."""
    try:
        fail(batch())
    except ValueError as error:
        return error
    raise AssertionError


def store_with_ring() -> Follow:
    """A parameter in a store, whose gradient leads back to it."""
    weight = KEPT["x"] = batch()
    weight.grad = torch.autograd.grad((weight**2).sum(), [weight], create_graph=True)[0]

    def follow() -> None:
        KEPT["x"].grad = None
        KEPT.clear()

    return follow


def model_with_ring() -> Follow:
    """A module's parameter, whose gradient leads back to it."""
    model = KEPT["model"] = torch.nn.Linear(64, 64)
    model(torch.ones(4, 64)).pow(2).sum().backward(create_graph=True)

    def follow() -> None:
        KEPT["model"].zero_grad(set_to_none=True)
        KEPT.clear()

    return follow


def attribute_ring() -> Follow:
    """A result that hangs on what it was computed from."""
    weight = KEPT["x"] = batch()
    weight.loss = (weight**2).sum()

    def follow() -> None:
        del KEPT["x"].loss
        KEPT.clear()

    return follow


def hook_ring() -> Follow:
    """A hook that refers to the loss of its own graph."""
    hidden = batch() * 2
    loss = KEPT["loss"] = (hidden * hidden).sum()
    handle = hidden.register_hook(lambda _: loss.detach() * 0)

    def follow() -> None:
        handle.remove()
        KEPT.clear()

    return follow


def exception() -> Follow:
    """An exception in a global."""
    KEPT["error"] = caught()
    return lambda: KEPT.update(error=str(KEPT["error"]))


def exception_without_traceback() -> Follow:
    """The same, by the other remedy."""
    KEPT["error"] = caught()
    return lambda: KEPT.update(error=KEPT["error"].with_traceback(None))


def bare_traceback() -> Follow:
    """A traceback in a global."""
    error = caught()
    KEPT["trace"] = error.__traceback__
    del error
    return lambda: KEPT.update(trace="".join(traceback.format_tb(KEPT["trace"])))


def weak_key() -> Follow:
    """A value that refers to its own key."""
    owner = Owner()
    STATS[owner] = {"owner": owner}

    def follow() -> None:
        for key in list(STATS):
            STATS[key] = {"owner": weakref.ref(key)}

    return follow


def finalizer() -> Follow:
    """A finaliser that keeps its object: the remedy is not to make such a one."""
    owner = Owner()
    finalize: Any = weakref.finalize(owner, owner.close)
    kept = weakref.ref(owner)

    def follow() -> None:
        found = kept()
        finalize.detach()
        weakref.finalize(found, print, "closed", end="", file=sys.stderr)

    return follow


def exit_callback() -> Follow:
    """A method given to atexit."""
    owner = Owner()
    kept = weakref.ref(owner)
    atexit.register(owner.close)
    return lambda: atexit.unregister(kept().close)  # type: ignore[union-attr]  # it is alive: that is the leak


def background_task() -> Follow:
    """A task of a loop in another thread."""
    ready = threading.Event()

    async def work() -> None:
        kept = batch()
        ready.set()
        await asyncio.sleep(3600)
        del kept

    future = asyncio.run_coroutine_threadsafe(work(), LOOP)
    ready.wait(60)

    def follow() -> None:
        future.cancel()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), LOOP).result(60)

    return follow


def scheduled_call() -> Follow:
    """A call that an event loop has still to make."""
    kept = batch()
    loop = KEPT["loop"] = asyncio.new_event_loop()
    handle = loop.call_later(3600, lambda: kept)
    return handle.cancel


def waiting_work() -> Follow:
    """A call that an executor has still to make."""
    kept = batch()
    pool = KEPT["pool"] = concurrent.futures.ThreadPoolExecutor(1)
    stop = threading.Event()
    pool.submit(stop.wait, 60)
    pool.submit(lambda: kept)

    def follow() -> None:
        pool.shutdown(wait=False, cancel_futures=True)
        stop.set()
        pool.shutdown(wait=True)

    return follow


CASES = {
    function.__name__: function
    for function in (
        store_with_ring, model_with_ring, attribute_ring, hook_ring, exception, exception_without_traceback, bare_traceback,
        weak_key, finalizer, exit_callback, background_task, scheduled_call, waiting_work,
    )
}  # fmt: skip


def alive() -> set[int]:
    """The ids of the tensors that are alive."""
    gc.collect()
    return {id(value) for value in gc.get_objects() if issubclass(type(value), torch.Tensor)}


def main() -> None:
    """Print one line of JSON a case: its hints, and how many tensors were left before and after following them."""
    threading.Thread(target=LOOP.run_forever, name="background-loop", daemon=True).start()
    for name, case in CASES.items():
        before = alive()
        with watch() as leaks:
            follow = case()
        hints = [leak.hint for leak in leaks]
        left = len(alive() - before)
        follow()
        del follow
        line = {"name": name, "hints": hints, "left": left, "after": len(alive() - before)}
        sys.stdout.write(json.dumps(line) + "\n")
        KEPT.clear()


if __name__ == "__main__":
    main()
