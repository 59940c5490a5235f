"""What an autograd graph behind leaked tensors keeps alive: counted without a change to the graph."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import pytest

from pytest_gpuleak.adapters.torch import autograd_walk
from pytest_gpuleak.adapters.torch.graph_size import retained_by_graph
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.model.findings import NOT_READ, Autograd

pytestmark = [pytest.mark.torch, pytest.mark.interpreter]

KIB = 1024


@pytest.fixture(autouse=True)
def _own_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd_walk, "_spent", [0])


def retained(tensors: list[Any]) -> Autograd | None:
    return retained_by_graph(tensors, Budget(10**9))


def tensors_alive(torch: Any) -> int:
    return sum(torch.Tensor in type(value).__mro__ for value in gc.get_objects())


def test_activations_count_once_each(torch: Any) -> None:
    weight = torch.zeros(16, 16, requires_grad=True)
    data = torch.zeros(256, 16)  # 16 KiB, and so is each activation
    hidden = (data @ weight).exp()
    loss = (hidden * hidden).sum()
    # mm saves `data` and the weight, exp its result, mul that result twice: two storages that are no leaf's.
    assert retained([loss]) == Autograd(nodes=5, saved_tensors=2, saved_bytes=32 * KIB)


def test_storages_of_the_given_tensors_are_counted_elsewhere(torch: Any) -> None:
    weight = torch.zeros(16, 16, requires_grad=True)
    hidden = (torch.zeros(256, 16) @ weight).exp()
    assert retained([hidden]) == Autograd(nodes=3, saved_tensors=1, saved_bytes=16 * KIB)


def test_a_view_retains_the_whole_storage(torch: Any) -> None:
    table = torch.zeros(256 * KIB // 4)
    scale = torch.ones(4, requires_grad=True)
    found = retained([table[:4] * scale])
    assert found is not None
    assert (found.saved_tensors, found.saved_bytes) == (1, 256 * KIB)


def test_graphs_that_meet_are_counted_once(torch: Any) -> None:
    hidden = torch.zeros(1024, requires_grad=True).exp()
    losses = [hidden.sum() for _ in range(3)]
    assert retained(losses) == Autograd(nodes=3 + 2, saved_tensors=1, saved_bytes=4 * KIB)


def test_without_a_graph_there_is_nothing(torch: Any) -> None:
    assert retained([]) is None
    assert retained([torch.zeros(2), torch.zeros(2, requires_grad=True), object()]) is None


def test_what_backward_has_freed_is_not_counted(torch: Any) -> None:
    loss = torch.zeros(16, requires_grad=True).exp().sum()
    loss.backward()
    assert retained([loss]) == Autograd(nodes=3, saved_tensors=0, saved_bytes=0)


def test_custom_functions_keep_what_they_saved_and_what_hangs_on_ctx(torch: Any) -> None:
    class Twice(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            ctx.save_for_backward(value.detach() + 1)
            ctx.mask = torch.zeros(1024)
            return value * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad

    result = Twice.apply(torch.zeros(1024, requires_grad=True))
    assert retained([result]) == Autograd(nodes=2, saved_tensors=2, saved_bytes=8 * KIB)


def test_unpack_hooks_are_not_called_and_what_they_packed_counts(torch: Any) -> None:
    def unpack(packed: Any) -> Any:
        raise AssertionError("a user's hook")

    with torch.autograd.graph.saved_tensors_hooks(lambda saved: ("packed", saved.detach().clone()), unpack):
        result = torch.zeros(1024, requires_grad=True).exp()
    assert retained([result]) == Autograd(nodes=2, saved_tensors=1, saved_bytes=4 * KIB)


def test_a_saved_tensor_that_was_written_to_still_counts(torch: Any) -> None:
    hidden = torch.zeros(1024, requires_grad=True).exp()
    loss = hidden.sum()
    hidden.detach().add_(1)
    found = retained([loss])
    assert found is not None
    assert found.saved_bytes == 4 * KIB


def test_reading_makes_no_gradient_no_tensor_and_no_warning(torch: Any) -> None:
    weight = torch.zeros(16, requires_grad=True)
    hidden = weight.exp()
    loss = (hidden * hidden).sum()
    before = tensors_alive(torch)
    retained([loss, hidden[:2]])
    assert tensors_alive(torch) == before
    assert weight.grad is None
    loss.backward()
    assert weight.grad is not None


def test_a_view_that_is_out_of_date_keeps_its_node(torch: Any) -> None:
    base = torch.zeros(4, requires_grad=True) * 2
    view = base[:2]
    base.mul_(3)
    found = retained([view])
    assert found is not None
    assert found.nodes == 3  # the two multiplications and the leaf: what torch would build the view's node upon


def test_subclasses_and_modes_are_not_asked(torch: Any) -> None:
    class Picky(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, *_: Any, **__: Any) -> Any:
            raise AssertionError("a user's class")

    with torch._C.DisableTorchFunction():
        loss = torch.zeros(4, requires_grad=True).exp().as_subclass(Picky)
    assert retained([loss]) is not None


def test_freed_storages_count_nothing(torch: Any) -> None:
    data = torch.zeros(1024)
    loss = (data * torch.zeros(1024, requires_grad=True)).sum()
    data.untyped_storage().resize_(0)
    assert retained([loss]) == Autograd(nodes=3, saved_tensors=0, saved_bytes=0)


def test_a_device_that_fails_gives_a_partial_answer(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess

    def fail(*_: object) -> Any:
        raise RuntimeError("CUDA error: device-side assert triggered")

    loss = torch.zeros(4, requires_grad=True).exp()
    monkeypatch.setattr(TorchAccess, "_untyped", fail)
    assert retained([loss.sum()]) == Autograd(nodes=3, saved_tensors=0, saved_bytes=0)


def test_the_count_is_bounded(torch: Any) -> None:
    loss = sum((torch.zeros(2, requires_grad=True) * 2).sum() for _ in range(50))
    found = retained_by_graph([loss], Budget(10**9), max_nodes=20)
    assert found is not None
    assert found.nodes == 20
    assert found.cut
    assert retained_by_graph([loss], Budget(0)) == NOT_READ


def test_a_count_that_met_its_budget_says_so(torch: Any) -> None:
    loss = sum((torch.zeros(2, requires_grad=True) * 2).sum() for _ in range(50))
    whole = retained([loss])
    part = retained_by_graph([loss], Budget(2_000))
    assert whole is not None
    assert part is not None
    assert (whole.cut, part.cut) == (False, True)
    assert 0 < part.saved_tensors < whole.saved_tensors


def test_a_graph_that_is_too_deep_is_cut(torch: Any) -> None:
    value = torch.zeros(1, requires_grad=True)
    for _ in range(2 * autograd_walk.MAX_DEPTH):
        value = value.exp()
    found = retained([value])
    assert found is not None
    assert found.cut


def test_more_losses_than_a_walk_starts_from_are_cut(torch: Any) -> None:
    weight = torch.zeros(1, requires_grad=True)
    losses = [weight * number for number in range(autograd_walk.MAX_STARTS + 1)]
    found, all_of_them = retained(losses), retained(losses[:-1])
    assert found is not None
    assert all_of_them is not None
    assert (found.cut, all_of_them.cut) == (True, False)


TRAINING = """
import sys, threading, torch
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.adapters.torch.graph_size import retained_by_graph

weight = torch.zeros(8, requires_grad=True)
shared = [weight.exp()]
stop = threading.Event()

def train():
    while not stop.is_set():
        loss = weight.exp()
        for _ in range(20):
            loss = shared[0] = loss * loss
        loss.sum().backward()

sys.setswitchinterval(1e-4)
threads = [threading.Thread(target=train) for _ in range(4)]
for thread in threads:
    thread.start()
found = [retained_by_graph([shared[0]], Budget(10**9)) for _ in range(200)]
stop.set()
for thread in threads:
    thread.join()
print("read", any(one.nodes for one in found), round(sys.getswitchinterval(), 9))
"""


def test_graphs_that_other_threads_run_backward_are_read_without_a_crash(run_with_torch: Any) -> None:
    done = run_with_torch(TRAINING)
    assert (done.returncode, done.stdout) == (0, "read False 0.0001\n"), done.stderr


DEEP = """
import sys, torch
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.adapters.torch.graph_size import retained_by_graph
loss = torch.zeros(1, requires_grad=True)
for step in range(60):
    for _ in range(2_000):
        loss = loss + 1
    assert retained_by_graph([loss], Budget(10**9)).nodes > 0
loss = None
print("freed")
"""


def test_a_graph_100_000_nodes_deep_can_still_be_freed(run_with_torch: Any) -> None:
    done = run_with_torch(DEEP)
    assert done.stdout == "freed\n", done.stderr


def test_no_torch_is_imported() -> None:
    code = "import sys; from pytest_gpuleak.adapters.torch.graph_size import retained_by_graph as r; print(r([1], None), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "None False\n"
