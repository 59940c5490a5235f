"""Graphs that defeat a naive walk: very deep, very many, changing meanwhile. Budgets are generous: machines differ."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess
from pytest_gpuleak.adapters.torch.autograd_walk import MAX_DEPTH, GraphWalk
from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.heap.budget import Budget

pytestmark = [pytest.mark.torch, pytest.mark.interpreter]


DEEP = """
import sys, threading, time, types
import torch
from pytest_gpuleak.explain.explain import explain

app = sys.modules["app"] = types.ModuleType("app")

def work():
    leaf = app.LOSS = torch.zeros(1, requires_grad=True)
    for _ in range(100_000):
        app.LOSS = app.LOSS + 1
    box = [leaf, app.LOSS]
    del leaf
    start = time.perf_counter()
    kinds = [found.holder.kind for found in explain(box)]
    print(kinds, time.perf_counter() - start < 30)
    box.clear()
    app.LOSS = None
    print("freed")

threading.stack_size(512 * 1024)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_a_graph_100_000_nodes_deep_is_searched_in_part_and_can_still_be_freed(run_with_torch: Any) -> None:
    done = run_with_torch(DEEP)
    assert done.stdout == "['native', 'module'] True\nfreed\n", done.stderr


def test_no_path_is_walked_deeper_than_the_limit(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_gpuleak.adapters.torch import autograd_walk

    monkeypatch.setattr(autograd_walk, "_spent", [0])
    access = TorchAccess.of_loaded()
    assert access is not None
    value = torch.zeros(1, requires_grad=True)
    states = []
    for _ in range(2 * MAX_DEPTH):
        value = value + 1
        states.append(value)
    walk = GraphWalk(access, Budget(10**9))
    walk.start(states[-1].grad_fn, states[-1], ".grad_fn")
    walk.start(states[10].grad_fn, states[10], ".grad_fn")  # far below where the walk from the other one ends
    nodes = [node.name() for node in walk.walk()]
    assert MAX_DEPTH < len(nodes) < MAX_DEPTH + 5
    assert autograd_walk._spent[0] == MAX_DEPTH


def test_walks_that_see_whole_graphs_cost_no_allowance(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_gpuleak.adapters.torch import autograd_walk

    monkeypatch.setattr(autograd_walk, "_spent", [0])
    access = TorchAccess.of_loaded()
    assert access is not None
    loss = (torch.zeros(1, requires_grad=True) + 1) * 2
    walk = GraphWalk(access, Budget(10**9))
    walk.start(loss.grad_fn, loss, ".grad_fn")
    assert [node.name() for node in walk.walk()][-1] == "torch::autograd::AccumulateGrad"
    assert autograd_walk._spent == [0]


def test_many_losses_share_what_they_saved(app: Any, torch: Any) -> None:
    shared = torch.zeros(3, requires_grad=True) * 2
    app.HISTORY.extend(shared * shared for _ in range(5_000))
    box = [shared]
    del shared
    start = time.perf_counter()
    text = explain(box, ignore={id(sys._getframe())})[0].holder.text
    assert time.perf_counter() - start < 30
    assert text.startswith("leaky_app.HISTORY[")
    assert text.endswith("].grad_fn._saved_self")


def test_many_views_of_one_base(app: Any, torch: Any) -> None:
    base = torch.zeros(8)
    app.HISTORY.extend(base[:1] for _ in range(20_000))
    box = [base]
    del base
    start = time.perf_counter()
    text = explain(box, ignore={id(sys._getframe())})[0].holder.text
    assert time.perf_counter() - start < 30
    assert text.endswith("]._base")


def test_all_activations_of_a_model_at_once(app: Any, torch: Any) -> None:
    model = torch.nn.Sequential(*[layer for _ in range(50) for layer in (torch.nn.Linear(4, 4), torch.nn.ReLU())])
    box: list[Any] = [torch.zeros(2, 4)]
    for layer in model:
        box.append(layer(box[-1]))
    app.HISTORY.append(box[-1].sum())
    box[:] = box[2:-1:2]  # what the next layer has saved
    start = time.perf_counter()
    found = explain(box, ignore={id(sys._getframe())})
    assert time.perf_counter() - start < 30
    assert {explanation.holder.root for explanation in found} == {"leaky_app.HISTORY"}


def test_no_budget_is_a_partial_answer(app: Any, torch: Any) -> None:
    app.VIEW = torch.zeros(4)[:2]
    box = [app.VIEW._base]
    assert explain(box, budget=Budget(0))[0].holder.kind == "unknown"


def test_graphs_that_other_threads_change_meanwhile(app: Any, torch: Any) -> None:
    weight = torch.zeros(4, requires_grad=True)
    hidden = weight * 3
    app.LOSS = (hidden * hidden).sum()
    box = [hidden]
    del hidden
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            app.OTHER = weight.exp()
            for _ in range(30):
                app.OTHER = app.OTHER * app.OTHER
            app.OTHER.sum().backward()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(3):
            assert explain(box, ignore={id(sys._getframe())})[0].holder.kind in ("native", "module")
    finally:
        stop.set()
        thread.join()
    text = explain(box, ignore={id(sys._getframe())})[0].holder.text
    assert text == "leaky_app.LOSS.grad_fn.next_functions[0][0]._saved_self"
