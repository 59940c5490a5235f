"""The record of blocks within a test's only run: what it changes, which is nothing, and what it counts."""

from __future__ import annotations

import gc
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from pytest_gpuleak.adapters.torch import cuda_attention, cuda_estimate, unestimated  # noqa: E402
from pytest_gpuleak.adapters.torch.cuda_estimate import BlockRecorder  # noqa: E402
from pytest_gpuleak.engine.peaks import peak_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.adapters.probe_protocol import TakenBlocks

nn, F = torch.nn, torch.nn.functional
FLOATS = 1024 * 1024
MIB = 1 << 20


def record(function: Callable[[], object]) -> TakenBlocks:
    recorder = BlockRecorder(torch)
    recorder.begin()
    try:
        function()
    finally:
        recorder.end()
    assert torch._C._len_torch_dispatch_stack() == 0
    return recorder.taken()


def peak(function: Callable[[], object]) -> float:
    """The peak of what a function takes for certain, in MiB."""
    taken = record(function)
    assert not taken.lacks
    return peak_of(taken.least).allocated / MIB


# -- what it changes


def inplace() -> None:
    made = torch.ones(4, requires_grad=True).exp()
    made.add_(1)
    made.sum().backward()


def twice() -> None:
    total = torch.ones(4, requires_grad=True).exp().sum()
    total.backward()
    total.backward()


def saved_hooks() -> int:
    seen: list[int] = []

    def pack(tensor: Any) -> Any:
        seen.append(1)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        torch.ones(4, requires_grad=True).exp().sum().backward()
    return len(seen)


def fake() -> str:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return str((torch.ones(1 << 20) * 2).shape)


def own_mode() -> int:
    class Counting(TorchDispatchMode):  # type: ignore[misc]
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += 1
            return func(*args, **(kwargs or {}))

    with Counting() as mode:
        (torch.ones(4) * 2).sum()
    return int(mode.count)


def recompute() -> float:
    from torch.utils.checkpoint import checkpoint

    given = torch.ones(4, requires_grad=True)
    checkpoint(lambda x: x.exp().sin(), given, use_reentrant=True).sum().backward()
    return float(given.grad.sum())


def jagged() -> bool:
    made = torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(4, 2)], layout=torch.jagged)
    return bool((made * 2).is_nested)


def random_numbers() -> list[float]:
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(layer.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    made: list[float] = [float(value) for value in torch.cat([p.flatten() for p in layer.parameters()])]
    return made + [float(value) for value in torch.rand(4)]


class Sub(torch.Tensor):  # type: ignore[misc, name-defined]
    """A class of tensors with a function of its own."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        SEEN.append(getattr(func, "__name__", ""))
        return super().__torch_function__(func, types, args, kwargs or {})


SEEN: list[str] = []


def subclass() -> list[str]:
    SEEN.clear()
    torch.ones(4).as_subclass(Sub).mul(2).add(1)
    return list(SEEN)


KINDS: dict[str, Callable[[], object]] = {
    "trace": lambda: torch.jit.trace(lambda a: a * 2 + 1, torch.ones(4))(torch.ones(2)).tolist(),
    "trace of a module": lambda: type(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))).__name__,
    "script": lambda: tuple(torch.jit.script(nn.Linear(4, 4))(torch.ones(2, 4)).shape),
    "in-place error": inplace,
    "backward twice": twice,
    "vmap of grad": lambda: torch.func.vmap(torch.func.grad(lambda a: (a * 2).sin().sum()))(torch.ones(3, 4)).tolist(),
    "jacrev": lambda: torch.func.jacrev(lambda a: a.sin())(torch.ones(3)).tolist(),
    "gradcheck": lambda: torch.autograd.gradcheck(lambda a: a.sin(), torch.ones(3).double().requires_grad_()),
    "swap": lambda: torch.utils.swap_tensors(torch.ones(3), torch.ones(4)),
    "hooks": saved_hooks,
    "fake": fake,
    "meta": lambda: tuple((torch.ones(1 << 20, device="meta") * 2).shape),
    "nested": lambda: bool(torch.nested.nested_tensor([torch.ones(3), torch.ones(4)]).is_nested),
    "jagged": jagged,
    "quantized": lambda: str(torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8).dtype),
    "mkldnn": lambda: bool(torch.ones(4, 4).to_mkldnn().is_mkldnn),
    "sparse": lambda: torch.mm(torch.eye(4).to_sparse(), torch.ones(4, 4)).tolist(),
    "checkpoint": recompute,
    "own mode": own_mode,
    "subclass": subclass,
    "symbolic": lambda: str(torch.fx.symbolic_trace(nn.Linear(2, 2)).graph),
    "random": random_numbers,
    "size error": lambda: torch.ones(2, 3) @ torch.ones(2, 3),
}


def ends(function: Callable[[], object]) -> tuple[object, str, list[int]]:
    """How a function ends: its result or error, its warnings, and the random generator's state."""
    torch.manual_seed(3)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            result = function()
        except Exception as error:  # noqa: BLE001
            result = f"{type(error).__name__}: {str(error)[:60]}"
    return result, str([str(one.message) for one in told]), torch.get_rng_state().tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_ends_as_without_the_record(kind: str) -> None:
    ends(KINDS[kind])  # torch warns of some things once
    without = ends(KINDS[kind])
    recorder = BlockRecorder(torch)
    recorder.begin()
    found = ends(KINDS[kind])
    recorder.end()
    assert found == without
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not [lack for lack in recorder.taken().lacks if "failed" in lack]


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "SGD, maximized": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.1, maximize=True),
    "Adam": lambda p: torch.optim.Adam(p, weight_decay=0.1),
    "Adam with amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True, maximize=True),
    "Adam, rate as a tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-3)),
    "AdamW": lambda p: torch.optim.AdamW(p, amsgrad=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_make_the_same_parameters_to_the_bit(name: str) -> None:
    def train() -> Any:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(33, 65), nn.GELU(), nn.Linear(65, 7))
        optimizer = OPTIMIZERS[name](model.parameters())
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(9, 33)).square().mean().backward()
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    found: list[Any] = []
    assert not record(lambda: found.append(train())).lacks
    assert torch.equal(found[0], train())
    assert "cpu" not in sys.modules["torch.optim.optimizer"]._get_foreach_kernels_supported_devices()


# -- what it counts


def test_what_was_there_before_is_not_counted_nor_what_is_made_in_a_pause() -> None:
    before = torch.ones(FLOATS)
    recorder = BlockRecorder(torch)
    recorder.begin()
    recorder.pause()
    fixture = torch.ones(FLOATS)
    recorder.resume()
    kept = [before.view(1024, 1024), before.add_(1), fixture.mul_(2), fixture[:10]]
    made = before + fixture
    recorder.end()
    assert kept
    assert made is not None
    assert peak_of(recorder.taken().most).allocated == 4 * MIB


def test_a_block_ends_with_its_storage_also_where_a_graph_alone_held_it() -> None:
    def steps() -> None:
        for _ in range(3):
            made = torch.ones(FLOATS, requires_grad=True).exp().sin().sum()
            made.backward()
            del made

    gc.collect()
    assert peak(steps) == pytest.approx(16, abs=0.1)  # values and exp; cos and its product in the backward pass


def test_gradients_are_added_up_as_without_a_mode() -> None:
    values = torch.ones(FLOATS, requires_grad=True)
    assert peak(lambda: (values * values).sum().backward()) == pytest.approx(8, abs=0.1)  # in the first one's memory


@pytest.mark.parametrize(
    "pick", [lambda x: x.max(1).values, lambda x: x[torch.arange(8)], lambda x: x.index_select(0, torch.arange(8))]
)
def test_gradients_are_put_into_zeros_as_without_a_mode(pick: Callable[[Any], Any]) -> None:
    values = torch.ones(1024, 1024, requires_grad=True)
    assert peak(lambda: pick(values).sum().backward()) == pytest.approx(4, abs=0.1)


def test_resized_and_given_results() -> None:
    def resize() -> None:
        made = torch.empty(10)
        made.resize_(FLOATS)
        torch.add(made, 1, out=torch.empty(0))

    assert peak(resize) == pytest.approx(8, abs=0.01)


def test_dropout_keeps_bytes() -> None:
    values = torch.ones(FLOATS)
    assert peak(lambda: F.dropout(values, 0.5)) == 5
    assert peak(lambda: F.dropout(values.clone(), 0.5, inplace=True)) == 8
    assert peak(lambda: torch.empty_like(values).bernoulli_(0.5)) == 4
    assert peak(lambda: F.alpha_dropout(values, 0.5, training=True)) > 8


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_attention_keeps_no_scores(p: float) -> None:
    query = torch.randn(2, 4, 512, 64, requires_grad=True)  # 1 MiB, its scores 8

    def attend() -> None:
        F.scaled_dot_product_attention(query, query, query, dropout_p=p).sum().backward()

    assert peak(attend) < 7
    assert (
        peak(lambda: F.scaled_dot_product_attention(query.detach(), query.detach(), query.detach(), dropout_p=p)) < 1.1
    )


def test_attention_without_a_fused_kernel_keeps_scores_or_is_not_estimated() -> None:
    query = torch.randn(2, 4, 512, 64)  # 1 MiB, its scores 8
    turned = torch.randn(2, 4, 64, 512).transpose(-2, -1)
    attend = F.scaled_dot_product_attention
    assert peak(lambda: attend(query[0], query[0], query[0])) > 8
    assert peak(lambda: attend(query, query, query, dropout_p=0.5)) < 1.1
    assert peak(lambda: attend(turned, turned, turned, dropout_p=0.5)) > 16
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert peak(lambda: attend(query, query, query)) > 16
    mask = torch.zeros(512, 512, 4).permute(2, 0, 1)
    assert peak(lambda: attend(query, query, query, torch.zeros(512, 512), dropout_p=0.5)) < 3
    assert peak(lambda: attend(query, query, query, mask, dropout_p=0.5)) > 16
    assert record(lambda: attend(query, query, query, torch.zeros(512, 512))).lacks == ()
    assert record(lambda: attend(query, query, query, mask[None].expand(2, -1, -1, -1))).lacks == (
        cuda_attention.UNFUSED,
    )
    narrow = query[..., :30].contiguous()
    assert record(lambda: attend(narrow, narrow, narrow)).lacks == (cuda_attention.UNFUSED,)
    assert record(lambda: attend(query.double(), query.double(), query.double())).lacks == (cuda_attention.UNFUSED,)


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_what_attention_takes_in_its_backward_pass_is_in_doubt(p: float) -> None:
    query = torch.randn(2, 4, 512, 64, requires_grad=True)
    taken = record(lambda: F.scaled_dot_product_attention(query, query, query, dropout_p=p).sum().backward())
    assert peak_of(taken.most).allocated >= peak_of(taken.least).allocated + 2 * MIB
    assert "attention" in taken.doubts[0]


def test_norms_by_root_mean_square_keep_their_result_alone() -> None:
    values, weight = torch.ones(1024, 1024), torch.ones(1024, requires_grad=True)
    assert peak(lambda: F.rms_norm(values, (1024,), weight)) == pytest.approx(4, abs=0.1)
    taken = record(lambda: F.rms_norm(values, (1024,), weight).sum().backward())
    assert taken.doubts == ("what rms_norm takes inside is not known",)


def test_what_the_cpu_s_kernel_alone_makes_is_not_counted() -> None:
    values = torch.ones(FLOATS)
    assert peak(lambda: F.logsigmoid(values)) == 4


@pytest.mark.parametrize("function", [lambda x: x.prod(1), lambda x: x.cumprod(1), torch.max])
def test_a_backward_pass_that_looks_at_values_is_in_doubt(function: Callable[[Any], Any]) -> None:
    values = torch.ones(1024, 1024, requires_grad=True)
    taken = record(lambda: function(values).sum().backward())
    assert peak_of(taken.least).allocated < peak_of(taken.most).allocated
    assert taken.doubts


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: F.layer_norm(x, (512,)), "native_layer_norm"),
        (lambda x: F.rms_norm(x, (512,)), "rms_norm"),
        (lambda x: x.softmax(-1), "softmax"),
        (lambda x: F.interpolate(x[None], scale_factor=2), "upsample_nearest1d"),
        (lambda x: F.pad(x[None], (1, 1), "reflect"), "reflection_pad1d"),
    ],
)
def test_what_autocast_computes_otherwise_on_cuda_is_not_estimated(function: Callable[[Any], Any], name: str) -> None:
    values = torch.ones(512, 512)

    def run() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            function(values @ values)

    assert record(run).lacks == (cuda_estimate.OTHER_PRECISION.format(name),)
    assert record(lambda: function(values)).lacks == ()


def test_softmax_under_autocast_reads_half_precision() -> None:
    scores = torch.randn(1024, 1024, dtype=torch.bfloat16, requires_grad=True)

    def train() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            F.cross_entropy(scores, torch.zeros(1024, dtype=torch.int64)).backward()

    # The result, its gradient, and the half gradient.
    assert peak(train) == pytest.approx(10, abs=0.1)
    assert record(train).autocast


def test_a_copy_to_the_same_device_is_in_doubt() -> None:
    def copy() -> None:
        values = torch.ones(FLOATS)
        values.to("cpu", copy=True)

    taken = record(copy)
    assert (peak_of(taken.least).allocated, peak_of(taken.most).allocated) == (4 * MIB, 8 * MIB)
    assert "copied" in taken.doubts[0]


def test_an_operator_without_a_rule_is_in_doubt() -> None:
    values = torch.ones(FLOATS)
    taken = record(values.sort)
    assert peak_of(taken.least).allocated == 12 * MIB
    assert peak_of(taken.most).allocated >= 32 * MIB  # what CUDA takes
    assert taken.doubts == ("what sort takes inside is not known",)


def test_what_cannot_be_estimated_is_told() -> None:
    def recurrent() -> None:
        nn.GRU(4, 4)(torch.ones(2, 3, 4))

    def other_optimizer() -> None:
        layer = nn.Linear(2, 2)
        layer(torch.ones(1, 2)).sum().backward()
        torch.optim.RAdam(layer.parameters()).step()

    def averages() -> None:
        average = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
        for _ in range(2):
            average.update_parameters(nn.Linear(2, 2))

    def other_autocast() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autocast("cuda"):
                torch.ones(2, 2) @ torch.ones(2, 2)

    def thread() -> None:
        import threading

        started = threading.Thread(target=lambda: torch.ones(4))
        started.start()
        started.join()

    assert record(recurrent).lacks == (cuda_estimate.RECURRENT,)
    assert record(lambda: nn.GRU(4, 4)).lacks == ()
    assert record(other_optimizer).lacks == ("torch.optim.radam works on all parameters at once on CUDA alone",)
    assert record(averages).lacks == (unestimated.AVERAGED,)
    assert record(other_autocast).lacks == (unestimated.OTHER_AUTOCAST,)
    assert record(thread).lacks == (cuda_estimate.THREADS,)
    assert record(lambda: torch.ones(4, 4).to_mkldnn()).lacks == (cuda_estimate.OPAQUE,)
