"""Leaks in files as a user writes them, beside the codes' examples: another form of a pattern, with its hint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.planted.kind import Kind

if TYPE_CHECKING:
    from tests.planted.kind import Expected

HOOK = "`handle.remove()`"

OPTIMIZER = """
import pytest
import torch


@pytest.fixture(scope="module")
def model():
    return torch.nn.Linear(600, 600)


@pytest.fixture(scope="module")
def optimizer(model):
    return torch.optim.Adam(model.parameters())


"""


def _file(
    name: str, source: str, hint: tuple[str, str], expected: Expected = "growing", *, ordered: bool = False
) -> Kind:
    return Kind(name, "see the hint", source.lstrip("\n"), file=True, first=expected, hint=hint, ordered=ordered)


KINDS: Final = (
    _file(
        "backward hook",
        """
import torch

NET = torch.nn.Linear(8, 8)


def test_hook():
    kept = torch.ones(64, 64)
    NET.register_full_backward_hook(lambda module, args, out: None if kept is None else None)  # edit
""",
        ("A hook registered on `$m.NET` was never removed", HOOK),
    ),
    _file(
        "handler of the root logger",
        """
import io
import logging

import torch


def test_logs():
    handler = logging.StreamHandler(io.StringIO())
    handler.model = torch.ones(64, 64)
    logging.root.addHandler(handler)  # edit
""",
        ("Each run adds to `logging.root.handlers`, which stays until Python ends", "`removeHandler()`"),
    ),
    _file(
        "tensor's hook",
        """
import torch

WEIGHT = torch.ones(8, requires_grad=True)  # edit


def test_hook():
    kept = torch.ones(64, 64)
    WEIGHT.register_hook(lambda grad: None if kept is None else None)
""",
        ("A hook registered on `$m.WEIGHT` was never removed", HOOK),
    ),
    _file(
        "hook of a graph's node",
        """
import torch

RESULT = (torch.ones(8, requires_grad=True) * 2).sum()  # edit


def test_hook():
    kept = torch.ones(64, 64)
    RESULT.grad_fn.register_hook(lambda *args: None if kept is None else None)
""",
        ("A hook registered on `$m.RESULT", HOOK),
    ),
    _file(
        "hook for all modules",
        """
import torch


def test_hook():
    kept = torch.ones(64, 64)
    torch.nn.modules.module.register_module_forward_hook(lambda module, args, out: None if kept is None else None)
""",
        ("A hook registered for all", HOOK),
    ),
    _file(
        "a fixture's optimizer keeps a hook",
        OPTIMIZER
        + """def test_hook(optimizer):
    kept = torch.ones(64, 64)
    optimizer.register_step_post_hook(lambda *args: None if kept is None else None)


def test_other(model, optimizer):
    pass
""",
        ("A hook registered on fixture 'optimizer' was never removed", HOOK),
        "growing",
        ordered=True,
    ),
    _file(
        "a fixture's optimizer keeps its state",
        OPTIMIZER
        + """def test_step(model, optimizer):
    model(torch.ones(2, 600)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_other(model, optimizer):
    pass
""",
        ("The optimizer fixture 'optimizer' keeps its state (`exp_avg`)", "`state.clear()`"),
        "noted",
        ordered=True,
    ),
    _file(
        "results of a cache, under new keys",
        """
import functools

import torch


@functools.lru_cache(maxsize=None)
def mask(size):
    return torch.ones(size, size)


def test_mask():
    mask(64 + mask.cache_info().currsize)
""",
        ("The cache of `$m.mask` keeps one more result with each run", "`cache_clear()`"),
    ),
    _file(
        "what pytest.raises gave",
        """
import pytest
import torch

CAUGHT = []


def fail():
    kept = torch.ones(64, 64)
    raise ValueError("no")


def test_refuses():
    with pytest.raises(ValueError) as caught:
        fail()
    CAUGHT.append(caught)  # edit
""",
        ("What `pytest.raises` gave is kept in `$m.CAUGHT`", "`str(excinfo.value)`"),
    ),
    _file(
        "finalizers of a class",
        """
import weakref

import torch


class Encoder:
    pass


def test_finalizer():
    weakref.finalize(Encoder, len, torch.ones(64, 64)).atexit = False  # edit
""",
        ("The weakref.finalize callback len of $m.Encoder keeps", "`detach()`"),
    ),
    _file(
        "timers that wait",
        """
import threading

import torch


def test_timer():
    kept = torch.ones(64, 64)
    timer = threading.Timer(600, lambda: kept)
    timer.daemon = True
    timer.start()
""",
        ("The timer 'Thread-", "`cancel()`"),
    ),
    _file(
        "losses below a metric's name",
        """
import torch

METRICS = {"loss": []}


def test_loss():
    METRICS["loss"].append((torch.ones(64, 64, requires_grad=True) * 2).exp().sum())  # edit
""",
        ("`$m.METRICS` keeps a result with its autograd graph", "`.detach()`"),
    ),
    _file(
        "arrays of records with objects",
        """
import numpy as np
import torch

TABLES = []


def test_table():
    table = np.zeros(2, dtype=[("label", "i4"), ("image", object)])
    table["image"][0] = torch.ones(64, 64)
    TABLES.append(table)  # edit
""",
        ("Each run adds to `$m.TABLES`", "teardown"),
    ),
    _file(
        "contexts that pile up",
        """
import contextvars
import torch

BATCH = contextvars.ContextVar("batch")
CONTEXTS = []


def test_context():
    context = contextvars.copy_context()
    context.run(BATCH.set, torch.ones(64, 64))
    CONTEXTS.append(context)  # edit
""",
        ("Each run adds to `$m.CONTEXTS`", "teardown"),
    ),
    _file(
        "bytes of the host",
        """
BLOBS, NAMES = [], []


def test_blob():
    BLOBS.append(memoryview(bytearray(12 << 20)))  # edit
""",
        ("Each run adds to `$m.BLOBS`", "teardown"),
    ),
    _file(
        "exceptions of finished tasks",
        """
import asyncio

import torch

TASKS = []


async def fit(batch):
    raise ValueError("diverged")


async def start():
    TASKS.append(asyncio.create_task(fit(torch.ones(64, 64))))  # edit
    await asyncio.wait(TASKS[-1:])


def test_fit():
    asyncio.run(start())
""",
        ("A finished future kept in `$m.TASKS` keeps its exception", "drop the future"),
    ),
    _file(
        "task that the end of its loop has cancelled",
        """
import asyncio

import torch

TASKS = set()


async def wait(batch):
    await asyncio.Event().wait()


async def start():
    TASKS.add(asyncio.create_task(wait(torch.ones(64, 64))))  # edit
    await asyncio.sleep(0)


def test_fit():
    asyncio.run(start())
""",
        ("A finished future kept in `$m.TASKS` keeps its exception", "drop the future"),
    ),
    _file(
        "losses summed up in a dict",
        """
import torch

TOTALS = {"loss": 0.0}
WEIGHT = torch.ones(64, requires_grad=True)


def test_step():
    loss = (WEIGHT * torch.rand(64)).sum()
    TOTALS["loss"] += loss  # edit
""",
        ("`$m.TOTALS` keeps a result with its autograd graph", "`.item()`"),
    ),
    _file(
        "batches in a queue",
        """
import queue

import torch

WAITING = queue.Queue()


def test_queue():
    WAITING.put(torch.ones(64, 64))  # edit
""",
        ("Each run adds to `$m.WAITING.queue`", "empty it in teardown"),
    ),
    _file(
        "filter of a logger",
        """
import logging

import torch

LOGGER = logging.getLogger("app.train")


def test_filter():
    kept = torch.ones(64, 64)
    LOGGER.addFilter(lambda record: kept is not None)  # edit
""",
        ("A function kept in `$m.LOGGER.filters` closes over `kept`", "take the function out"),
    ),
    _file(
        "patches of a wider fixture",
        """
import pytest
import torch


class App:
    weights = None


@pytest.fixture(scope="module")
def patches():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def test_patch(patches):
    patches.setattr(App, "weights", torch.ones(64, 64))  # edit


def test_other(patches):
    pass
""",
        ("The test left it in the value of fixture 'patches'", "function scope"),
        "growing",
        ordered=True,
    ),
    _file(
        "list in the closure of a fixture that is a factory",
        """
import pytest
import torch


@pytest.fixture(scope="module")
def make_batch():
    made = []

    def make(size):
        made.append(torch.ones(size, size))  # edit
        return made[-1]

    return make


def test_make(make_batch):
    make_batch(64)


def test_other(make_batch):
    pass
""",
        ("The test left it in the value of fixture 'make_batch'", "function scope"),
        "growing",
        ordered=True,
    ),
)
