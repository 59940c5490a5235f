"""Hooks, and rings that pass through C++: what no collector frees."""

from __future__ import annotations

import gc
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.explain.native_references import NativeReferences
from pytest_gpuleak.heap.hidden_references import RING_ROOT, Link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.torch, pytest.mark.interpreter, pytest.mark.usefixtures("small_heap")]


class Owner:
    """Keeps what a hook refers to."""

    loss: Any


def holder_of(box: list[Any]) -> Any:
    gc.collect()
    return explain(box, ignore={id(sys._getframe(1)), id(sys._getframe())})[0].holder


def hook_that_refers_to(value: Any) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        assert value is not None

    return hook


def ring(torch: Any) -> tuple[Any, Any]:
    """A loss that a hook on a tensor of its own graph keeps alive, and the leaf of that graph."""
    owner = Owner()
    leaf = torch.zeros(4, requires_grad=True)
    hidden = leaf * 2
    owner.loss = (hidden * hidden).sum()
    hidden.register_hook(lambda _: owner.loss)
    return owner.loss, leaf


@pytest.fixture
def break_rings(torch: Any) -> Iterator[None]:
    yield
    for value in gc.get_objects():
        if type(value) is Owner:
            value.__dict__.clear()


@pytest.mark.parametrize(("method", "edge"), [("register_hook", " (hooks)"), ("register_prehook", " (prehooks)")])
def test_a_hook_on_a_node_of_a_graph_that_is_held(app: Any, torch: Any, method: str, edge: str) -> None:
    box = [torch.zeros(9)]
    app.LOSS = torch.zeros(4, requires_grad=True) * 2 + 1
    getattr(app.LOSS.grad_fn.next_functions[0][0], method)(hook_that_refers_to(box[0]))
    text = holder_of(box).text
    assert text.startswith(f"leaky_app.LOSS.grad_fn.next_functions[0][0]{edge}")
    assert text.endswith(".__closure__[0].cell_contents")


def test_asking_for_hooks_registers_none(app: Any, torch: Any) -> None:
    from torch.autograd.function import _HookMixin

    called: list[Any] = []
    box = [torch.zeros(9)]
    leaf = torch.zeros(4, requires_grad=True)
    app.LOSS = (leaf * 2).sum()
    node = app.LOSS.grad_fn.next_functions[0][0]
    node.register_hook(hook_that_refers_to(box[0]))
    node.register_hook(lambda *_: called.append(1))
    original = vars(_HookMixin)["_register_hook"]
    assert "(hooks)" in holder_of(box).text
    assert vars(_HookMixin)["_register_hook"] is original
    box.clear()
    app.LOSS.backward()
    assert called == [1]


def test_hooks_can_be_registered_by_other_threads_meanwhile(app: Any, torch: Any) -> None:
    box = [torch.zeros(9)]
    app.LOSS = torch.zeros(4, requires_grad=True) * 2 + 1
    app.LOSS.grad_fn.next_functions[0][0].register_hook(hook_that_refers_to(box[0]))
    stop = threading.Event()
    called: list[int] = []
    rounds = 0

    def work() -> None:
        nonlocal rounds
        while not stop.is_set():
            loss = torch.zeros(1, requires_grad=True) * 2
            loss.grad_fn.register_hook(lambda *_: called.append(1))
            try:
                loss.backward()
            except SystemError:  # a walk over the heap holds an unfinished tuple (gh-59313)
                continue
            rounds += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(3):
            assert holder_of(box).kind == "native"
    finally:
        stop.set()
        thread.join()
    assert "(hooks)" in holder_of(box).text, "graphs are read once no other thread may be using one"
    assert len(called) == rounds > 0


def test_a_hook_on_a_tensor_that_is_gone_is_called_one(app: Any, torch: Any) -> None:
    box = [torch.zeros(9)]
    hidden = torch.zeros(4, requires_grad=True) * 2
    hidden.register_hook(hook_that_refers_to(box[0]))
    app.LOSS = hidden + 1  # which does not save it
    del hidden
    holder = holder_of(box)
    assert (holder.kind, holder.root) == ("native", "C++ (hooks of an autograd graph)")


@pytest.mark.usefixtures("break_rings")
def test_each_of_many_tensors_is_on_a_ring_of_its_own(torch: Any) -> None:
    """As pyro 1.8.1 leaves 20 a run: from the 33rd on they were held by "C++"."""
    boxes = [ring(torch)[0] for _ in range(80)]
    assert {one.holder.root for one in explain(boxes, ignore={id(boxes)})} == {RING_ROOT}


@pytest.mark.usefixtures("break_rings")
def test_a_ring_through_a_hook(torch: Any) -> None:
    box = [ring(torch)[0]]
    holder = holder_of(box)
    assert (holder.kind, holder.root) == ("native", RING_ROOT)
    assert holder.text.startswith(f"{RING_ROOT} -> torch.Tensor.grad_fn.next_functions[0][0]._saved_self")
    assert holder.text.endswith(".__closure__[0].cell_contents.loss")
    weak = torch._C._WeakTensorRef(box[0])
    box.clear()
    gc.collect()
    assert not weak.expired()  # the ring is real


def test_a_hook_that_refers_to_its_own_tensor_is_a_ring(torch: Any) -> None:
    box = [torch.zeros(4, requires_grad=True) * 2]
    handle = box[0].register_hook(hook_that_refers_to(box[0]))
    holder = holder_of(box)
    assert holder.text.startswith(f"{RING_ROOT} -> torch.Tensor._backward_hooks[")
    weak = torch._C._WeakTensorRef(box[0])
    box.clear()
    gc.collect()
    assert not weak.expired()  # the ring is real
    handle.remove()
    assert weak.expired()


@pytest.mark.usefixtures("break_rings")
def test_the_heap_is_not_walked_for_what_a_ring_keeps(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[int] = []

    def walk(_: NativeReferences, wanted: tuple[object, ...], *__: object) -> list[Link]:
        walked.append(len(wanted))
        return []

    monkeypatch.setattr(NativeReferences, "_walk_heap", walk)
    assert holder_of([ring(torch)[0]]).root == RING_ROOT
    assert walked == []
    box: list[Any] = [torch.zeros(2)]
    alias = box[0]
    holder_of(box)
    assert len(walked) == 2
    assert alias is box[0]


@pytest.mark.usefixtures("break_rings")
def test_what_hangs_below_a_ring_is_led_to_from_it(torch: Any) -> None:
    box = [ring(torch)[1]]
    holder = holder_of(box)
    assert holder.root == RING_ROOT
    assert holder.text.endswith(f".loss.grad_fn{'.next_functions[0][0]' * 3}.variable")


def test_a_ring_is_found_among_hundreds_of_references(torch: Any, break_rings: None) -> None:
    """A test of botorch leaves 556 tensors in one ring of 2,366 nodes: "held by C++", without the hook that closes it."""
    owner = Owner()
    value = torch.ones(4, requires_grad=True) * 2
    first, box = value, [value]
    for _ in range(100):
        value = value.exp() * value
        box.append(value)
    owner.loss = value
    first.register_hook(hook_that_refers_to(owner))
    del value, first, owner
    gc.collect()
    holders = [found.holder for found in explain(box, ignore={id(sys._getframe())})]
    assert {holder.root for holder in holders} == {RING_ROOT}
    assert all(any(step.edge == ".loss" for step in holder.path) for holder in holders)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_parameter_whose_gradient_leads_back_to_it(torch: Any) -> None:
    weight = torch.ones(3, requires_grad=True)
    (weight**3).sum().backward(create_graph=True)
    box = [weight]
    del weight
    holder = holder_of(box)
    box[0].grad = None
    assert holder.root == RING_ROOT
    assert holder.text.startswith(f"{RING_ROOT} -> torch.Tensor.grad.grad_fn.")


def test_a_custom_function_that_keeps_a_view_of_its_output(torch: Any) -> None:
    class Keep(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad

    result = Keep.apply(torch.ones(3, requires_grad=True))
    result.grad_fn.kept = result * 1
    box = [result.grad_fn.kept]
    del result
    holder = holder_of(box)
    assert holder.root == RING_ROOT
    weak = torch._C._WeakTensorRef(box[0])
    node = box[0].grad_fn.next_functions[0][0]
    box.clear()
    gc.collect()
    assert not weak.expired()
    del node.kept
    assert weak.expired()
