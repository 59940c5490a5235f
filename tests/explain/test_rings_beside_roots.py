"""Rings through C++ that keep a tensor beside a root: the root's edit frees nothing, so the ring is the holder."""

from __future__ import annotations

import gc
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain.explain import explain
from pytest_gpuleak.heap.hidden_references import RING_ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Runner

pytestmark = [pytest.mark.torch, pytest.mark.interpreter, pytest.mark.usefixtures("small_heap")]


def with_ring(torch: Any) -> Any:
    """A parameter whose gradient's graph leads back to it."""
    weight = torch.ones(4, requires_grad=True)
    weight.grad = torch.autograd.grad((weight**2).sum(), [weight], create_graph=True)[0]
    return weight


def explained(box: list[Any]) -> list[tuple[str, list[str]]]:
    gc.collect()
    found = explain(box, ignore={id(sys._getframe(1)), id(sys._getframe())})
    return [(one.holder.root, [other.text for other in one.others]) for one in found]


def freed(torch: Any, box: list[Any]) -> bool:
    """Whether a tensor goes with the last reference from here."""
    weak = torch._C._WeakTensorRef(box.pop())
    gc.collect()
    return bool(weak.expired())


def test_a_parameter_in_a_store(app: Any, torch: Any) -> None:
    app.CACHE["x"] = with_ring(torch)
    box = [app.CACHE["x"], app.CACHE["x"].grad]
    shown = explained(box)
    assert shown == [(RING_ROOT, ["leaky_app.CACHE['x']"]), (RING_ROOT, ["leaky_app.CACHE['x'].grad"])]
    gradient = box.pop()
    app.CACHE.clear()
    assert not freed(torch, box)  # the store alone was not it
    gradient.grad_fn.next_functions[1][0].next_functions[0][0]._saved_self.grad = None
    assert explained([gradient])[0][0] != RING_ROOT


def test_a_global_and_an_attribute(app: Any, torch: Any) -> None:
    app.WEIGHT = with_ring(torch)
    app.HOLDER = app.Attention()
    app.HOLDER.weight = with_ring(torch)
    shown = explained([app.WEIGHT, app.HOLDER.weight])
    app.WEIGHT.grad = app.HOLDER.weight.grad = None
    assert [(root, set(others)) for root, others in shown] == [
        (RING_ROOT, {"leaky_app.WEIGHT"}),
        (RING_ROOT, {"leaky_app.HOLDER.weight"}),
    ]


def test_what_is_on_no_ring_keeps_its_root(app: Any, torch: Any) -> None:
    app.CACHE["x"], app.CACHE["plain"] = with_ring(torch), torch.ones(4)
    app.HISTORY.append((torch.ones(4, requires_grad=True) * 2).sum())
    shown = explained([app.CACHE["plain"], app.CACHE["x"], app.HISTORY[0]])
    app.CACHE["x"].grad = None
    assert [root for root, _ in shown] == ["leaky_app.CACHE", RING_ROOT, "leaky_app.HISTORY"]


def test_a_gradient_that_the_reader_can_reset_is_on_no_ring(app: Any, torch: Any) -> None:
    """The parameter is older than the test: with its gradient goes all that was left."""
    app.WEIGHT = torch.ones(4, requires_grad=True)
    app.WEIGHT.grad = torch.autograd.grad((app.WEIGHT**2).sum(), [app.WEIGHT], create_graph=True)[0]
    box = [app.WEIGHT.grad]
    (shown,) = explained(box)
    assert shown == ("leaky_app.WEIGHT", [])
    app.WEIGHT.grad = None
    assert freed(torch, box)


def _attribute(torch: Any) -> Any:
    weight = torch.ones(4, requires_grad=True)
    weight.loss = (weight**2).sum()
    return weight


def _hook(torch: Any) -> Any:
    hidden = torch.ones(4, requires_grad=True) * 2
    loss = (hidden * hidden).sum()
    hidden.register_hook(lambda _: loss.detach() * 0)
    return loss


def _hook_of_a_node(torch: Any) -> Any:
    kept: list[Any] = []
    inner = torch.ones(4, requires_grad=True) + 1
    inner.grad_fn.register_hook(lambda *_: kept.clear())
    kept.append(inner.sum())
    return kept[0]


def _hook_of_a_leaf(torch: Any) -> Any:
    kept: list[Any] = []
    leaf = torch.ones(4, requires_grad=True)
    leaf.register_post_accumulate_grad_hook(lambda _: kept.clear())
    kept.append((leaf + 1).sum())
    return kept[0]


def _context(torch: Any) -> Any:
    class Doubled(torch.autograd.Function):  # type: ignore[misc]  # torch is Any here
        @staticmethod
        def forward(ctx: Any, value: Any, kept: list[Any]) -> Any:
            ctx.kept = kept
            return value * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient, None

    kept: list[Any] = []
    kept.append(Doubled.apply(torch.ones(4, requires_grad=True), kept).sum())
    return kept[0]


def _packed(torch: Any) -> Any:
    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda value: (kept, value), lambda packed: packed[1]):
        leaf = torch.ones(4, requires_grad=True)
        kept.append((leaf * leaf).sum())
    return kept[0]


def _gradient_of_what_is_no_leaf(torch: Any) -> Any:
    inner = torch.ones(4, requires_grad=True) * 2
    inner.retain_grad()
    loss = (inner * inner).sum()
    inner.grad = loss.expand(4)
    return loss


def _attribute_of_a_gradient(torch: Any) -> Any:
    leaf = torch.ones(4, requires_grad=True)
    loss = (leaf * leaf).sum()
    loss.backward(retain_graph=True)
    leaf.grad.of = [loss]
    return loss


def _attribute_of_a_base(torch: Any) -> Any:
    batch = torch.ones(8)
    loss = (torch.ones(4, requires_grad=True) * batch[:4]).sum()
    batch.loss = [loss]
    return loss


def _slot(torch: Any) -> Any:
    class Slotted(torch.Tensor):  # type: ignore[misc]  # torch is Any here
        __slots__ = ("loss",)

    saved = torch.ones(4).as_subclass(Slotted)
    loss = (torch.ones(4, requires_grad=True) * saved).sum().as_subclass(torch.Tensor)
    saved.loss = [loss]
    return loss


OTHERS = [
    _attribute,
    _hook,
    _hook_of_a_node,
    _hook_of_a_leaf,
    _context,
    _packed,
    _gradient_of_what_is_no_leaf,
    _attribute_of_a_gradient,
    _attribute_of_a_base,
    _slot,
]


@pytest.mark.parametrize("make", OTHERS)
def test_other_rings(app: Any, torch: Any, make: Callable[[Any], Any]) -> None:
    app.HISTORY.append(make(torch))
    box = [app.HISTORY[0]]
    (shown,) = explained(box)
    assert shown == (RING_ROOT, ["leaky_app.HISTORY[0]"])
    app.HISTORY.clear()
    assert not freed(torch, box)


@pytest.mark.parametrize("boxed", [False, True], ids=["itself", "what holds it"])
def test_a_thread_that_keeps_it_too_is_listed(app: Any, torch: Any, *, boxed: bool) -> None:
    ready, finish = threading.Event(), threading.Event()

    def work() -> None:
        kept = app.HISTORY[0]
        ready.set()
        finish.wait(60)
        del kept

    app.HISTORY.append([torch.ones(4)] if boxed else torch.ones(4))
    thread = threading.Thread(target=work, name="keeper", daemon=True)
    thread.start()
    ready.wait(60)
    try:
        (shown,) = explained([app.HISTORY[0][0] if boxed else app.HISTORY[0]])
    finally:
        finish.set()
        thread.join()
    assert shown[0] == "leaky_app.HISTORY"
    assert [text.partition(" in ")[0] for text in shown[1]] == ["thread 'keeper'"]


RUN = """
    import pytest, torch

    STORE = {}

    @pytest.fixture(autouse=True)
    def clear():
        STORE.clear()

    def test_store():
        x = STORE["x"] = torch.randn(100, requires_grad=True)
        x.grad = torch.autograd.grad((x ** 2).sum(), [x], create_graph=True)[0]

    def test_known_by_now():
        STORE["cache"] = torch.ones(600, 600)
        x = STORE["x"] = torch.randn(100, requires_grad=True)
        x.grad = torch.autograd.grad((x ** 2).sum(), [x], create_graph=True)[0]
"""


@pytest.mark.usefixtures("forked")
def test_a_store_that_is_emptied_before_each_test(run: Runner) -> None:
    ran = run(RUN, apart=True)
    for name in ("test_store", "test_known_by_now"):
        found = {finding["kind"]: finding for finding in ran.tests[name]["findings"]}
        assert found["growing"]["holder"]["root"] == RING_ROOT
        assert "create_graph=True" in found["growing"]["hint"]
        assert "`.grad = None`" in found["growing"]["hint"]
    assert found["retained"]["holder"]["text"] == "test_it.STORE['cache']"
