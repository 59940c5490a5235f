"""Hints on real leaks with torch: one run of pytest over many mistakes, each in a test of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Json, Run, Runner

pytestmark = [pytest.mark.torch, pytest.mark.interpreter, pytest.mark.usefixtures("forked")]

APP = """
    import contextvars
    import functools
    import torch

    HISTORY, PREPARED, ERRORS, CALLBACKS, WAITING, RECORDS = [], [], [], [], [], []
    MODEL, NET, BODY = (torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(3))
    WEIGHT = torch.ones(8, requires_grad=True)
    BIAS = None
    METRICS = {"loss": []}
    CONTEXT = contextvars.ContextVar("context")

    def batch(size=64):
        return torch.ones(size, size)

    class Encoder:
        registry = {}

        def __init__(self):
            self.weight = batch()

        @functools.lru_cache(maxsize=None)
        def positions(self, length):
            return length

        @functools.cached_property
        def table(self):
            return torch.ones(600, 600)

    class Registered:
        known = {}

        def __init_subclass__(cls):
            Registered.known[len(Registered.known)] = cls

    @functools.lru_cache(maxsize=None)
    def norm(array):
        return 1.0

    @functools.lru_cache(maxsize=None)
    def mask(size):
        return batch(size)

    def memoise(function):
        kept = {}

        def wrapper(size):
            if size not in kept:
                kept[size] = function(size)
            return kept[size]

        return wrapper

    table = memoise(batch)

    def collect(array, into=[]):
        into.append(array)
"""

MISTAKES = {
    "forward_hook": (
        """
        kept = batch()
        app.MODEL[0].register_forward_hook(lambda module, args, out: kept)
        """,
        "A hook registered on `app.MODEL[0]` was never removed",
        "`handle.remove()`",
    ),
    "backward_hook": (
        """
        kept = batch()
        app.NET.register_full_backward_hook(lambda module, args, out: None if kept is None else None)
        """,
        "A hook registered on `app.NET` was never removed",
        "`handle.remove()`",
    ),
    "tensor_hook": (
        """
        kept = batch()
        app.WEIGHT.register_hook(lambda grad: None if kept is None else None)
        """,
        "A hook registered on `app.WEIGHT` was never removed",
        "`handle.remove()`",
    ),
    "optimizer_hook(optimizer)": (
        """
        kept = batch()
        optimizer.register_step_post_hook(lambda *args: None if kept is None else None)
        """,
        "A hook registered on fixture 'optimizer' was never removed",
        "`handle.remove()`",
    ),
    "hook_for_all": (
        """
        kept = batch()
        torch.nn.modules.module.register_module_forward_hook(lambda module, args, out: None if kept is None else None)
        """,
        "A hook registered for all",
        "`handle.remove()`",
    ),
    "cached_method": (
        "app.Encoder().positions(3)",
        "The cache on the method `app.Encoder.positions` keeps each `self`",
        "`cache_clear()`",
    ),
    "cached_arguments": (
        "app.norm(batch())",
        "The cache of `app.norm` keeps the arrays that it was called with",
        "`cache_clear()`",
    ),
    "cached_results": (
        "app.mask(64 + app.mask.cache_info().currsize)",
        "The cache of `app.mask` keeps one more result with each run",
        "`cache_clear()`",
    ),
    "cached_property": (
        """
        app.ENCODER = app.Encoder()
        app.ENCODER.table
        """,
        "If `app.ENCODER.table` is a `functools.cached_property`",
        "`del`",
    ),
    "memo": (
        """
        app.sizes = getattr(app, "sizes", 64) + 1
        app.table(app.sizes)
        """,
        "`app.table` keeps it in `kept`",
        "cleared",
    ),
    "default_argument": (
        "app.collect(batch())",
        "A default argument of `app.collect` is one object for all calls",
        "`None`",
    ),
    "closure": (
        """
        kept = batch()
        app.CALLBACKS.append(lambda: kept)
        """,
        "A function kept in `app.CALLBACKS` closes over `kept`",
        "take the function out",
    ),
    "bound_method": (
        "app.RECORDS.append(app.Encoder().__init__)",
        "A bound method kept in `app.RECORDS` keeps its object",
        "`weakref.WeakMethod`",
    ),
    "partial": (
        "app.partials = [*getattr(app, 'partials', []), functools.partial(print, batch())]",
        "A `functools.partial` kept in `app.partials`",
        "take it out",
    ),
    "exception": (
        """
        def fail():
            kept = batch()
            raise ValueError("no")

        try:
            fail()
        except ValueError as error:
            app.ERRORS.append(error)
        """,
        "The exception kept in `app.ERRORS` keeps its traceback",
        "`str(error)`",
    ),
    "raises": (
        """
        def fail():
            kept = batch()
            raise ValueError("no")

        with pytest.raises(ValueError) as caught:
            fail()
        app.caught = [*getattr(app, "caught", []), caught]
        """,
        "What `pytest.raises` gave is kept in `app.caught`",
        "`str(excinfo.value)`",
    ),
    "exception_argument": (
        "app.refusals = [*getattr(app, 'refusals', []), ValueError(batch())]",
        "The exception kept in `app.refusals` was raised with an array",
        "`str(error)`",
    ),
    "mock": (
        """
        if not hasattr(app, "CLIENT"):
            app.CLIENT = mock.Mock()
        app.CLIENT.send(data=batch())
        """,
        "The mock `app.CLIENT` keeps the arguments of each call",
        "`reset_mock()`",
    ),
    "patch": (
        "mock.patch.object(app, 'BIAS', batch()).start()",
        "The patch of 'BIAS' was started and never stopped",
        "`stop()`",
    ),
    "finalizer": (
        "weakref.finalize(app.Encoder, len, batch())",
        "The weakref.finalize callback len of app.Encoder keeps",
        "`detach()`",
    ),
    "future": (
        """
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            app.futures = [*getattr(app, "futures", []), pool.submit(batch)]
        """,
        "A finished future kept in `app.futures` keeps its result",
        "drop the future",
    ),
    "log_record": (
        """
        if not hasattr(app, "HANDLER"):
            app.HANDLER = logging.handlers.MemoryHandler(10**6)
            logging.getLogger("app").addHandler(app.HANDLER)
        logging.getLogger("app").warning("loss is %s", torch.ones(4))
        """,
        "A log record kept in `app.HANDLER.buffer`",
        "`loss.item()`",
    ),
    "generator": (
        """
        def batches():
            kept = batch()
            yield 1
            yield kept

        iterator = batches()
        next(iterator)
        app.WAITING.append(iterator)
        """,
        "A suspended generator kept in `app.WAITING` keeps its local `kept`",
        "`close()`",
    ),
    "thread": (
        """
        started = threading.Event()

        def work():
            kept = batch()
            started.set()
            never.wait(60)

        threading.Thread(target=work, daemon=True).start()
        started.wait(10)
        """,
        "The thread 'Thread-",
        "`join()`",
    ),
    "timer": (
        """
        kept = batch()
        timer = threading.Timer(60, lambda: kept)
        timer.daemon = True
        timer.start()
        """,
        "The timer 'Thread-",
        "`cancel()`",
    ),
    "asyncio_task": (
        """
        async def work():
            kept = batch()
            await asyncio.sleep(60)

        if not hasattr(app, "LOOP"):
            app.LOOP = asyncio.new_event_loop()
        app.LOOP.create_task(work())
        app.LOOP.run_until_complete(asyncio.sleep(0))
        """,
        "An asyncio task that has not ended keeps the locals of `",
        "`cancel()`",
    ),
    "context_variable": (
        "app.CONTEXT.set(batch(600))",
        "The context variable ",
        "`reset(token)`",
    ),
    "registered_class": (
        """
        class Sub(app.Registered):
            weight = batch()
        """,
        "The class `Sub`, defined in a function, stays registered in `app.Registered.known`",
        "registry",
    ),
    "loss": (
        "app.losses = [*getattr(app, 'losses', []), loss()]",
        "`app.losses` keeps a result with its autograd graph",
        "`.item()`",
    ),
    "metric": (
        "app.METRICS['loss'].append(loss())",
        "`app.METRICS` keeps a result with its autograd graph",  # with the leaf that the graph leads to
        "`.detach()`",
    ),
    "view": (
        """
        with torch.inference_mode():
            app.LAST = torch.ones(600, 600)[0]
        """,
        "`app.LAST` keeps a view, and with it the whole storage",
        "`.clone()`",
    ),
    "growing_list": (
        "app.HISTORY.append(batch())",
        "Each run adds to `app.HISTORY` and nothing takes it out",
        "teardown",
    ),
    "module_global": (
        "app.BODY.register_buffer('cache', batch(600))",
        "The global `app.BODY` keeps it",
        "`allow_gpu_leak`",
    ),
    "optimizer(model, optimizer)": (
        """
        model(torch.ones(2, 600)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        """,
        "The optimizer fixture 'optimizer' keeps its state (`exp_avg`)",
        "`state.clear()`",
    ),
    "shared_fixture(shared)": (
        "shared['x'] = batch(600)",
        "The test left it in the value of fixture 'shared'",
        "function scope",
    ),
    "config(request)": (
        "request.config.batches = [*getattr(request.config, 'batches', []), batch()]",
        "pytest's config keeps `.batches`",
        "session ends",
    ),
}
"""By name, with the fixtures it takes: what is done, how the hint starts and what it names as the remedy."""

GROUPS = 3

HEAD = """
    import asyncio, atexit, concurrent.futures, functools, logging.handlers, threading, weakref
    from unittest import mock
    import pytest
    import torch
    import app
    from app import batch

    never = threading.Event()

    def loss():
        return (torch.ones(64, 64, requires_grad=True) * 2).exp().sum()

    @pytest.fixture(scope="module")
    def model():
        return torch.nn.Linear(600, 600)

    @pytest.fixture(scope="module")
    def optimizer(model):
        return torch.optim.Adam(model.parameters())

    @pytest.fixture(scope="module")
    def shared():
        return {}

    class TestNet:
        def test_instance(self):
            self.weight = batch(600)

    class TestSetup:
        def setup_method(self):
            app.PREPARED.append(torch.ones(8))

        def test_setup(self):
            pass

    def test_exit():
        kept = batch()
        atexit.register(lambda: kept)
"""


def _indented(code: str) -> str:
    lines = [line.strip("\n") for line in code.splitlines()]
    shift = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join("        " + line[shift:] for line in lines)


@pytest.fixture
def leaky(run: Runner, pytester: pytest.Pytester) -> Run:
    """The run over all the mistakes."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytester.makepyfile(app=APP)
    mistakes = [
        f"    def do_{name if '(' in name else name + '()'}:\n{_indented(code)}"
        for name, (code, _, _) in MISTAKES.items()
    ]
    # Several to a test: a test's leaks are confirmed and explained at once.
    tests = [
        f"    def test_{group}(model, optimizer, shared, request):\n"
        + "".join(f"        do_{name if '(' in name else name + '()'}\n" for name in list(MISTAKES)[group::GROUPS])
        for group in range(GROUPS)
    ]
    # What is put into a fixture that ends with the test is gone: another test needs it after them.
    last = "    def test_last(model, optimizer, shared):\n        pass\n"
    return run(HEAD + "\n" + "\n\n".join([*mistakes, *tests, last]), apart=True)


def _hints(test: Json) -> list[str]:
    findings: list[dict[str, Any]] = test["findings"]
    return [str(finding["hint"]) for finding in findings]


def test_each_mistake_is_told_with_the_edit_that_frees_it(leaky: Run) -> None:
    given = {name: _hints(test) for name, test in leaky.tests.items()}
    missing = {
        name: given[f"test_{index % GROUPS}"]
        for index, (name, (_, start, remedy)) in enumerate(MISTAKES.items())
        if not any(hint.startswith(start) and remedy in hint for hint in given[f"test_{index % GROUPS}"])
    }
    assert missing == {}
    assert given["TestNet::test_instance"][0].startswith("pytest keeps the instance of a test class until the session")
    assert given["TestSetup::test_setup"] == [
        "`app.PREPARED` still keeps what `setup_method` made: let `teardown_method` take it out again."
    ]
    assert given["test_exit"][0].startswith("`test_it.test_exit.<locals>.<lambda>` was given to `atexit.register()`")
