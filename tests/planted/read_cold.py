"""Leaks in files as a user writes them, to be read cold: the report says a line that ends with `  # edit` here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.planted.kind import Kind

if TYPE_CHECKING:
    from tests.planted.kind import Expected


def _file(name: str, source: str, expected: Expected = "growing", *, ordered: bool = False) -> Kind:
    return Kind(name, "see the marked lines", source.lstrip("\n"), file=True, first=expected, ordered=ordered)


KINDS: Final = (
    _file(
        "list in nested dicts of a class",
        """
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
    ),
    _file(
        "dict in the closure of a global function",
        """
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
    ),
    _file(
        "listener of an event bus",
        """
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
    ),
    _file(
        "losses with their graph, added through another name",
        """
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
    ),
    _file(
        "buffers under new names",
        """
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
    ),
    _file(
        "tuple in a context variable",
        """
import contextvars
import torch

current = contextvars.ContextVar("current")  # edit

def test_request():
    history = current.get(())
    current.set((*history, {"state": torch.ones(60, 60)}))  # edit
""",
    ),
    _file(
        "records kept by a handler of the project's",
        """
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
    ),
    _file(
        "partials in a heap",
        """
import functools
import heapq
import torch

SCHEDULE = []  # edit

def refresh(weights, scale):
    return weights * scale

def test_schedule():
    heapq.heappush(SCHEDULE, (len(SCHEDULE), functools.partial(refresh, torch.ones(22, 44), scale=2)))  # edit
""",
    ),
    _file(
        "set in a singleton",
        """
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
    ),
    _file(
        "optimizers in nested dicts",
        """
import torch

RUNS = {}  # edit

def test_fit():
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    RUNS.setdefault(model.in_features, {}).setdefault("optimizers", []).append(optimizer)  # edit
""",
    ),
    _file(
        "list of a module's fixture",
        """
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
        "growing",
        ordered=True,
    ),
    _file(
        "module's fixture without a teardown",
        """
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
def catalogue_leaks():
    yield Catalogue.open("points")  # edit

def test_look(catalogue_leaks):
    assert catalogue_leaks.vectors.shape[0]
""",
        "passes",
    ),
    _file(
        "deque in an object with slots",
        """
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
    ),
    _file(
        "item of a dict, added through a local name; a second function adds to a namesake",
        """
import torch

ROUNDS = {}

def note(run, step):
    steps = ROUNDS.setdefault(run, [])
    steps.append({"number": len(steps), "state": step})  # edit

def forget(steps):
    steps.append(None)

def test_rounds():
    note("round-7", torch.ones(31, 31))
""",
    ),
    _file(
        "exception kept on an object",
        """
import torch

class Solver:
    failure = None

    def solve(self, matrix):
        scratch = matrix * 2
        raise ValueError("singular")

    def run(self, matrix):
        try:
            self.solve(matrix)
        except ValueError as error:
            self.failure = error  # edit

SOLVER = Solver()

def test_solver():
    SOLVER.run(torch.ones(600, 600))
""",
        "retained",
    ),
    _file(
        "list that two lines add to, of which one ran",
        """
import torch

BATCHES = []

def warm_up():
    BATCHES.append(None)

def load(size):
    BATCHES.append(torch.ones(size, 3))  # edit

def test_load():
    load(300)
""",
    ),
    _file(
        "functions of a library's dispatcher",
        """
import functools
import torch

@functools.singledispatch
def draw(shape):  # edit
    return None

def test_draw():
    class Square:
        pass

    canvas = torch.ones(64, 64)
    draw.register(Square, lambda shape: canvas)
""",
    ),
    _file(
        "records that a handler of Python's own buffers",
        """
import logging.handlers
import torch

LOGGER, HANDLER = logging.getLogger("depot.night"), logging.handlers.MemoryHandler(10_000, flushLevel=100)  # edit
LOGGER.addHandler(HANDLER)
LOGGER.propagate = False

def test_logs():
    LOGGER.warning("grad %s", torch.ones(70, 70))
""",
    ),
)
