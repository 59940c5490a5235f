"""Code whose peak is known, on any device: what fills the memory, made where, follows from the sizes alone.

The peak of a test is recorded on the CPU by `tests/adapters/torch/test_peak_mode.py`, on CUDA by `tests/cuda_standin/test_peaks.py`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Case = Callable[..., object]

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
checkpoint: Any = torch.utils.checkpoint.checkpoint
nn = torch.nn

MIB: Final = 2**20
A_MIB: Final = 2**18
"""Elements of float32 in a MiB."""


class Truth(NamedTuple):
    """The peak in MiB, and the part of `number` x `each` MiB that the line marked ``# here`` has made; 0: of any size.

    The mark is in the case, or in what it has `where`.
    """

    peak: float
    number: int
    each: float
    category: str
    phase: str
    module: str = ""
    note: str = ""
    where: Any = None


class Table(list[tuple["Case", Truth]]):
    """Cases and their truths."""

    def case(self, *truth: Any, where: Any = None) -> Callable[[Case], Case]:
        """Return a decorator that adds a case."""

        def add(function: Case) -> Case:
            self.append((function, Truth(*truth)._replace(where=where)))
            return function

        return add

    def on(self, device: str) -> Table:
        """Return the cases as functions without arguments, on a device."""
        return Table((functools.wraps(one)(functools.partial(one, {"device": device})), truth) for one, truth in self)


def line_of(function: Case, truth: Truth) -> int | None:
    """Return the number of the marked line."""
    lines, first = inspect.getsourcelines(truth.where or function)
    return next((first + index for index, line in enumerate(lines) if line.endswith("# here\n")), None)


CASES: Final = Table()
case = CASES.case


class Wide(nn.Module):  # type: ignore[misc, name-defined]
    """A wide layer, of 4 MiB."""

    def __init__(self, on: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(1024, 1024, bias=False, **on)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class Doubled(torch.autograd.Function):  # type: ignore[misc]
    """Saves 8 MiB of its own."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(torch.ones(8 * A_MIB, device=x.device))  # here
        return x.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (saved,) = ctx.saved_tensors
        return gradients[0] * saved[: 2 * A_MIB]


@case(12, 1, 4, "gradient", "backward", "Wide.layer")
def gradients_accumulate(on: Any) -> None:
    # The parameter, its gradient, and the second pass's, which is added to it.
    net, x = Wide(on), torch.ones(1, 1024, **on)
    for _ in range(2):
        net(x).sum().backward()  # here


@case(12, 3, 4, "held", "call")
def in_threads(on: Any) -> None:
    barrier = threading.Barrier(3)

    def work() -> None:
        block = torch.ones(4 * A_MIB, **on)  # here
        barrier.wait()
        assert len(block)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@case(16, 3, 4, "activation", "forward", "Sequential.*")
def layers_of_a_model(on: Any) -> None:
    net, x = nn.Sequential(nn.Sigmoid(), nn.Sigmoid(), nn.Sigmoid()), torch.ones(4 * A_MIB, requires_grad=True, **on)
    net(x)  # here


@case(12, 1, 8, "held", "call")
def resized(on: Any) -> None:
    # The old memory is released once the new one is there.
    block = torch.ones(4 * A_MIB, **on)
    block.resize_(8 * A_MIB)  # here
    assert len(block) == 8 * A_MIB


@case(12, 1, 8, "activation", "backward", where=Doubled)
def saved_by_a_custom_function(on: Any) -> None:
    weight = torch.ones(2 * A_MIB, requires_grad=True, **on)
    Doubled.apply(weight).backward()


@case(9, 1, 8, "held", "call")
def an_error_on_the_way(on: Any) -> None:
    def fails() -> None:
        block = torch.ones(8 * A_MIB, **on)  # here
        torch.ones(A_MIB, **on)
        raise ValueError(len(block))

    with contextlib.suppress(ValueError):
        fails()
    torch.ones(4 * A_MIB, **on)


class Checkpointed(nn.Module):  # type: ignore[misc, name-defined]
    """Four blocks, of which each keeps its input alone until the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Sigmoid(), nn.Sigmoid(), nn.Sigmoid()) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)  # here
        return x


@case(8, 3, 1, "activation", "backward", "Checkpointed.blocks.*", where=Checkpointed)
def checkpointed(on: Any) -> None:
    # The inputs of four blocks, what three layers of the last make again, and a gradient.
    Checkpointed()(torch.ones(A_MIB, requires_grad=True, **on)).sum().backward()


@case(15, 3, 1, "activation", "call", "Checkpointed.blocks.*", where=Checkpointed)
def checkpointed_before_a_wide_end(on: Any) -> None:
    # The leaf, three inputs of blocks, the result, and ten of it joined: what a checkpoint keeps is told by the backward pass.
    result = Checkpointed()(torch.ones(A_MIB, requires_grad=True, **on))
    torch.cat([result] * 10).sum().backward()


@case(14, 1, 2, "activation", "forward", "Linear")
def copies_of_autocast(on: Any) -> None:
    # Parameter and input; copies of both and the result in half precision, of which the graph keeps the input's.
    net, x = nn.Linear(1024, 1024, bias=False, **on), torch.ones(1024, 1024, **on)
    with torch.autocast(on["device"], dtype=torch.bfloat16):
        result = net(x)  # here
    assert result.dtype is torch.bfloat16


@case(8, 1, 4, "activation", "call")
def changed_in_place(on: Any) -> None:
    # A ReLU in place keeps its result, which is the product's memory.
    product = torch.ones(4 * A_MIB, requires_grad=True, **on) * 2  # here
    assert nn.ReLU(inplace=True)(product) is product


@case(9.03, 1, 8, "held", "call")
def outer_product(on: Any) -> None:
    a, b = torch.ones(1024, 256, **on), torch.ones(1024, 8, **on)
    made = torch.einsum("bi,bj->bij", a, b)  # here
    assert made.shape == (1024, 256, 8)


@case(9.06, 1, 8, "parameter", "backward", "Embedding")
def sparse_gradient(on: Any) -> None:
    # The table, the rows' gradient, and their numbers twice.
    net = nn.Embedding(32768, 64, sparse=True, **on)  # here
    net(torch.arange(4096, **on)).sum().backward()
    assert net.weight.grad.is_sparse


@case(8, 2, 4, "held", "call")
def batches_of_a_generator(on: Any) -> None:
    # The next is made while the loop still has the one before.
    def batches() -> Iterator[Any]:
        for _ in range(3):
            yield torch.ones(4 * A_MIB, **on)  # here

    for batch in batches():
        batch.mul_(2)


class Evaluated(nn.Module):  # type: ignore[misc, name-defined]
    """Two layers without parameters that are counted, each with a ReLU."""

    def forward(self, x: Any) -> Any:
        weight = x[:512].detach().requires_grad_()
        return torch.relu(torch.relu(x @ weight) @ weight)  # here


@case(8, 2, 2, "activation", "forward", "Evaluated", where=Evaluated)
def evaluated_with_a_graph(on: Any) -> None:
    # The input, the first ReLU's result, the product, and the second's result.
    assert Evaluated().eval()(torch.ones(1024, 512, **on)).requires_grad


@case(12, 1, 4, "gradient", "backward")
def used_twice(on: Any) -> None:
    # The leaf and its two gradients: the second is added into the first one's memory, though under a mode it is not.
    weight = torch.ones(4 * A_MIB, requires_grad=True, **on)
    (weight * weight).sum().backward()  # here


@case(12, 1, 4, "held", "call")
def a_name_in_a_loop(on: Any) -> None:
    # The name has the old one until it is given the new one.
    block = torch.ones(A_MIB, **on)
    for _ in range(3):
        block = torch.cat([block, block])  # here
    assert len(block) == 8 * A_MIB


@case(12, 1, 4, "held", "call")
def an_item_in_a_loop(on: Any) -> None:
    kept = {"block": torch.ones(A_MIB, **on)}
    for _ in range(3):
        kept["block"] = torch.cat([kept["block"], kept["block"]])  # here
    assert len(kept["block"]) == 8 * A_MIB


@case(12, 1, 4, "temporary", "call")
def copied_into_another(on: Any) -> None:
    block = torch.ones(8 * A_MIB, **on)
    block[: 4 * A_MIB] = torch.zeros(4 * A_MIB, **on)  # here


if sys.version_info >= (3, 11):  # which tells the lines of an expression

    @case(16, 1, 4, "temporary", "call")
    def a_statement_over_lines(on: Any) -> None:
        block = torch.ones(4 * A_MIB, **on)
        joined = torch.cat(
            [
                block,
                block * 2,  # here
            ]
        )
        assert len(joined) == 8 * A_MIB


@case(12, 1, 4, "held", "backward")
def a_gradient_that_a_name_has(on: Any) -> None:
    # The leaf, its exponentials, and the gradient.
    weight = torch.ones(4 * A_MIB, requires_grad=True, **on)
    powers = weight.exp()
    (gradient,) = torch.autograd.grad(powers.sum(), weight)  # here
    assert len(gradient) == 4 * A_MIB


@case(8, 1, 4, "gradient", "backward")
def the_highest_of_each_row(on: Any) -> None:
    # The leaf and zeros into which gradients are put: in their memory, though under a mode they are not.
    torch.ones(1024, 1024, requires_grad=True, **on).max(1).values.sum().backward()  # here


@case(8, 1, 4, "gradient", "backward")
def rows_by_number(on: Any) -> None:
    torch.ones(1024, 1024, requires_grad=True, **on)[torch.arange(4, **on)].sum().backward()  # here


@case(16, 2, 4, "temporary", "backward", "Wide.layer")
def a_layer_used_twice(on: Any) -> None:
    # Its weight, a gradient by each use, and their sum: both are turned, and a view's memory is not added to in place.
    net = Wide(on)
    net(net(torch.ones(1, 1024, **on))).sum().backward()  # here


@case(8, 1, 4, "parameter", "call", "Linear")
def a_copy_of_a_model(on: Any) -> None:
    # A target net, an average: copied, and not called yet.
    net = nn.Linear(1024, 1024, bias=False, **on)
    target = copy.deepcopy(net)  # here
    assert target.weight is not net.weight


class Descent(torch.optim.Optimizer):  # type: ignore[misc]
    """An optimizer of the user's own."""

    def step(self, closure: Any = None) -> None:
        weight = self.param_groups[0]["params"][0]
        weight.data -= weight.grad * closure  # here


@case(12, 1, 4, "temporary", "optimizer", where=Descent)
def an_optimizer_of_ones_own(on: Any) -> None:
    weight = nn.Parameter(torch.ones(4 * A_MIB, **on))
    weight.grad = torch.ones(4 * A_MIB, **on)
    Descent([weight], {}).step(0.1)


@case(8, 1, 4, "held", "call")
def after_a_step_that_failed(on: Any) -> None:
    weight = nn.Parameter(torch.ones(4 * A_MIB, **on))
    with contextlib.suppress(TypeError):
        Descent([weight], {}).step(None)
    made = weight.detach() * 2  # here
    assert len(made)


class Kept(torch.autograd.Function):  # type: ignore[misc]
    """Keeps a value of its own as an attribute."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.kept = {"twice": x * 2}  # here
        return x.sum()


@case(8, 1, 4, "activation", "call", where=Kept)
def kept_by_a_custom_function(on: Any) -> None:
    assert Kept.apply(torch.ones(4 * A_MIB, requires_grad=True, **on)).requires_grad


@case(12, 1, 4, "activation", "call")
def packed_in_a_tuple(on: Any) -> None:
    weight = torch.ones(4 * A_MIB, requires_grad=True, **on)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: ("copy", saved * 1), lambda packed: packed[1]):  # here
        assert weight.square().sum().requires_grad


@case(16, 1, 4, "activation", "backward")
def within_a_transform(on: Any) -> None:
    # The point, its exponentials, which the graph keeps, the vector, and the product.
    point, vector = (torch.ones(4 * A_MIB, **on) for _ in range(2))
    pull_back = torch.func.vjp(torch.exp, point)[1]  # here
    (product,) = pull_back(vector)
    assert len(product) == 4 * A_MIB
