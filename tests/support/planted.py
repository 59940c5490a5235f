"""Leaks with nested and unusual holders, planted to be read cold; `  # edit` marks the lines that a reader may edit."""

from __future__ import annotations

from typing import Final

PLANTED: Final = {
    "class_attribute_nested_dict": """
import torch

class Warehouse:
    shelves = {}  # edit

    def __init__(self, city):
        self.city = city

    def stock(self, item):
        rack = self.shelves.setdefault(self.city, {"racks": {}})["racks"]
        rack.setdefault("new", []).append(item)  # edit

def test_stock():
    Warehouse("Oslo").stock(torch.ones(300, 10))
""",
    "closure_memo": """
import torch

def make_smoother():
    seen = {}  # edit

    def smooth(x, key):
        seen[key] = x.cumsum(0)  # edit
        return seen[key]

    return smooth

smooth = make_smoother()  # edit
n = 0

def test_smooth():
    global n
    n += 1
    smooth(torch.ones(40, 40), n)
""",
    "lru_cache_on_method": """
import functools
import torch

class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(32, 32)

    @functools.lru_cache(maxsize=None)  # edit
    def mask(self, n):  # edit
        return [False] * n

def test_mask():
    assert len(Encoder().mask(4)) == 4
""",
    "forward_hook_on_shared_model": """
import torch

BACKBONE = torch.nn.Linear(8, 8)

class Probe:
    def __init__(self, layer):
        self.taps = []
        layer.register_forward_hook(self.tap)  # edit

    def tap(self, layer, inputs, output):
        self.taps.append(output.detach())

def test_probe():
    Probe(BACKBONE)
    BACKBONE(torch.ones(16, 8))
""",
    "callback_of_event_bus": """
import torch

class Bus:
    def __init__(self):
        self.routes = {"epoch": {"listeners": []}}

    def on(self, topic, call):
        self.routes[topic]["listeners"].append(call)  # edit

BUS = Bus()  # edit

def test_listener():
    ema = torch.zeros(50, 50)
    BUS.on("epoch", lambda: ema.add_(1))  # edit
""",
    "stored_exception": """
import torch

PROBLEMS = []  # edit

def solve(a):
    scratch = a @ a
    raise ValueError("singular")

def test_solver():
    try:
        solve(torch.ones(30, 30))
    except ValueError as error:
        PROBLEMS.append(error)  # edit
""",
    "loss_with_graph": """
import torch

class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(20, 1)
        self.log = CURVES.setdefault("train", [])

    def step(self):
        loss = self.model(torch.ones(5, 20)).mean()
        loss.backward()
        self.log.append(loss)  # edit

CURVES = {}  # edit

def test_train():
    trainer = Trainer()
    for _ in range(3):
        trainer.step()
""",
    "module_buffer_list": """
import torch

class Replay(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0

    def push(self, x):
        self.register_buffer(f"slot_{self.count}", x)  # edit
        self.count += 1

REPLAY = torch.nn.ModuleDict({"main": Replay()})  # edit

def test_push():
    REPLAY["main"].push(torch.zeros(33, 33))
""",
    "weak_key_value_refers_to_key": """
import weakref
import torch

PLANS = weakref.WeakKeyDictionary()  # edit

class Engine:
    def __init__(self):
        self.weight = torch.ones(24, 24)

class Plan:
    def __init__(self, engine):
        self.engine = engine  # edit

def test_plan():
    engine = Engine()
    PLANS[engine] = Plan(engine)  # edit
""",
    "context_variable": """
import contextvars
import torch

current = contextvars.ContextVar("current")  # edit

def test_request():
    history = current.get(())
    current.set((*history, {"state": torch.ones(60, 60)}))  # edit
""",
    "logging_handler": """
import logging
import torch

logger = logging.getLogger("depot.train")

class Keeper(logging.Handler):
    def __init__(self):
        super().__init__()
        self.kept = []

    def emit(self, record):
        self.kept.append(record)  # edit

logger.addHandler(Keeper())  # edit
logger.propagate = False

def test_logs():
    logger.warning("grad %s", torch.ones(70, 70))  # edit
""",
    "mock_records_calls": """
from unittest import mock
import torch

sender = mock.Mock()  # edit

def test_send():
    sender.send("frame", data=[torch.ones(45, 45)])  # edit
""",
    "generator_not_ended": """
import torch

STREAMS = []  # edit

def batches():
    pool = torch.ones(80, 80)
    while True:
        yield pool.sum()

def test_stream():
    stream = batches()
    next(stream)
    STREAMS.append(stream)  # edit
""",
    "partial_in_schedule": """
import functools
import heapq
import torch

SCHEDULE = []  # edit

def refresh(weights, scale):
    return weights * scale

def test_schedule():
    heapq.heappush(SCHEDULE, (len(SCHEDULE), functools.partial(refresh, torch.ones(22, 44), scale=2)))  # edit
""",
    "singleton_session": """
import torch

class Session:
    _instance = None

    def __new__(cls):
        if cls._instance is None:
            cls._instance = super().__new__(cls)  # edit
            cls._instance.graphs = {"live": set()}
        return cls._instance

    def trace(self, graph):
        self.graphs["live"].add(graph)  # edit

class Graph:
    def __init__(self):
        self.constants = [torch.ones(36, 36)]

def test_trace():
    Session().trace(Graph())
""",
    "mutable_default": """
import torch

def collect(x, into=[]):  # edit
    into.append(x)  # edit
    return into

def test_collect():
    collect(torch.ones(55, 5))
""",
    "optimizer_in_registry": """
import torch

RUNS = {}  # edit

def test_fit():
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    RUNS.setdefault(model.in_features, {}).setdefault("optimizers", []).append(optimizer)  # edit
""",
    "atexit_callback": """
import atexit
import torch

class Writer:
    def __init__(self, table):
        self.table = table
        atexit.register(self.flush)  # edit

    def flush(self):
        pass

def test_write():
    Writer(torch.ones(66, 6))
""",
    "weakref_finalize_bound": """
import weakref
import torch

class Arena:
    def __init__(self):
        self.block = torch.ones(77, 7)
        weakref.finalize(self, self.release)  # edit

    def release(self):
        self.block = None

def test_arena():
    Arena()
""",
    "session_fixture_collects": """
import pytest
import torch

class Board:
    def __init__(self):
        self.cards = {"losses": []}

@pytest.fixture(scope="module")
def board():  # edit
    return Board()

def test_card(board):
    board.cards["losses"].append(torch.ones(99, 9))  # edit

def test_other(board):
    pass
""",
    "module_fixture_not_torn_down": """
import pytest
import torch

class Catalogue:
    opened = {}  # edit

    @classmethod
    def open(cls, name):
        self = cls()
        self.vectors = torch.ones(1200, 512)  # edit
        cls.opened[name] = self  # edit
        return self

@pytest.fixture(scope="module")
def catalogue():
    yield Catalogue.open("points")  # edit

def test_look(catalogue):
    assert catalogue.vectors.shape[0]
""",
    "deque_without_bound_in_slots": """
import collections
import torch

class Meter:
    __slots__ = ("window", "__weakref__")

    def __init__(self):
        self.window = collections.deque()

class Meters(collections.defaultdict):
    pass

METERS = Meters(Meter)  # edit

def test_meter():
    METERS["loss"].window.append((0.1, torch.ones(18, 180)))  # edit
""",
    "class_made_in_test": """
import abc
import torch

class Plugin(abc.ABC):
    registry = []  # edit

    def __init_subclass__(cls):
        Plugin.registry.append(cls)  # edit

def test_plugin():
    class Local(Plugin):
        table = torch.ones(26, 260)
""",
    "instance_attribute_cycle_global_ring": """
import torch

class Node:
    def __init__(self, value, previous):
        self.value = value
        self.previous = previous

LAST = None  # edit

def test_node():
    global LAST
    LAST = Node(torch.ones(27, 270), LAST)  # edit
""",
}
