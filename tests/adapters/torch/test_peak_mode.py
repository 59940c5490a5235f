"""What filled the memory at its peak, told of code whose memory is known: each truth follows from the sizes alone."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpuleak.adapters.registry import own_frameworks
from pytest_gpuleak.adapters.torch import peak_mode, peak_places

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.model.peak_parts import Peak

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
nn = torch.nn

from tests.support import peak_cases  # noqa: E402 - skips the file without torch
from tests.support.peak_cases import A_MIB, MIB, Table, Truth, Wide, line_of  # noqa: E402

pytestmark = pytest.mark.torch


FILES: Final = (__file__, peak_cases.__file__)


def recorder(files: tuple[str, ...] = FILES) -> Any:
    found = own_frameworks().peak_recorder(lambda file: file in files)
    assert found is not None
    return found


def peak_of(function: Callable[[], object]) -> Peak:
    record = recorder()
    with record:
        function()
    found: Peak = record.peak("cpu")
    assert found.bytes == sum(part.bytes for part in found.parts) + found.unexplained_bytes
    return found


CASES: Final = Table()
case = CASES.case


class Masked(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(16 * A_MIB))  # here

    def forward(self, x: Any) -> Any:
        return x * self.mask[: x.numel()]


@case(12, 1, 4, "optimizer state", "optimizer")
def state_of_momentum() -> None:
    weight = nn.Parameter(torch.ones(4 * A_MIB))
    weight.grad = torch.ones(4 * A_MIB)
    torch.optim.SGD([weight], momentum=0.9).step()  # here


@case(13, 1, 4, "gradient", "backward")
def values_by_a_mask() -> None:
    # The leaf, the mask, a copy of what it has, and zeros into which gradients are put.
    weight = torch.ones(1024, 1024, requires_grad=True)
    mask = torch.ones(1024, 1024, dtype=torch.bool)
    chosen = weight.masked_select(mask)
    chosen.sum().backward()  # here


@case(24, 1, 16, "buffer", "forward", "Masked", where=Masked)
def large_buffer() -> None:
    net, x = Masked(), torch.ones(4 * A_MIB)
    with torch.no_grad():
        net(x)


@case(36, 1, 16, "input", "forward")
def input_without_a_graph() -> None:
    net = Wide({})
    x = torch.ones(4096, 1024)  # here
    with torch.no_grad():
        result = net(x)
    assert result is not x


@case(37, 8, 4, "activation", "call")
def losses_keep_their_graphs() -> None:
    weight = torch.ones(A_MIB, requires_grad=True)
    losses = [weight.repeat(4).exp() for _ in range(8)]  # here
    assert losses


@case(17, 2, 8, "temporary", "call")
def distances() -> None:
    # The differences, and their absolute values, before the sum.
    a, b = torch.ones(1024, 1, 256), torch.ones(1, 8, 256)
    assert (a - b).abs().sum(-1).shape == (1024, 8)  # here


@case(8, 1, 8, "held", "call")
def a_view_keeps_all() -> None:
    kept = [torch.ones(8 * A_MIB)[:1]]  # here
    assert kept


@case(8, 1, 8, "parameter", "call")
def a_leaf_that_its_graph_saves() -> None:
    weight = torch.ones(8 * A_MIB, requires_grad=True)  # here
    assert weight.dot(weight.detach()).requires_grad


@case(12, 1, 8, "parameter", "call", "Linear")
def moved_to_another_type() -> None:
    # `Module.double` gives parameters other storages, and no hook is called.
    net = Wide({})
    net.double()  # here


@case(4, 1, 2, "held", "call")
def sparse() -> None:
    # The dense tensor, the values, and an index of 8 bytes for each.
    dense = torch.ones(A_MIB)
    found = dense.to_sparse()  # here
    assert found.is_sparse


ALL: Final = [*CASES, *peak_cases.CASES.on("cpu")]


@pytest.mark.parametrize(("function", "truth"), ALL, ids=[function.__name__ for function, _ in ALL])
def test_the_part_and_the_moment(function: Callable[[], object], truth: Truth) -> None:
    found = peak_of(function)
    assert 0 <= found.bytes - truth.peak * MIB < MIB // 8
    assert found.moment is not None
    assert found.moment.phase == truth.phase
    wanted = (truth.category, line_of(function, truth), truth.module, truth.number, truth.number * truth.each * MIB)
    told = [
        (part.category, part.created.line, part.module, part.count, part.bytes) for part in found.parts if part.created
    ]
    assert wanted in told[:4]
    assert found.lacks == ()


def test_a_gradient_is_held_until_a_test_has_returned() -> None:
    record = recorder((peak_cases.__file__,))
    with record:
        peak_cases.a_gradient_that_a_name_has({"device": "cpu"})
    assert [part.category for part in record.peak("cpu").parts if part.note] == ["held"]


def test_a_node_with_the_number_of_another_thread_s_has_no_place() -> None:
    losses: list[Any] = []

    def first() -> None:
        losses.append(torch.ones(A_MIB, requires_grad=True).exp().sum())

    def second() -> None:
        losses.append(torch.ones(A_MIB, requires_grad=True).exp().sum())

    def step() -> None:
        for work in (first, second):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        losses[0].backward()

    found = peak_of(step)
    assert found.moment is not None
    assert (found.moment.phase, found.moment.forward) == ("backward", "")


def test_a_node_of_a_backward_pass_has_its_line() -> None:
    def step() -> None:
        weight = torch.ones(A_MIB, requires_grad=True)
        (slope,) = torch.autograd.grad((weight**3).sum(), weight, create_graph=True)
        (slope,) = torch.autograd.grad(slope.sum(), weight)

    found = peak_of(step)
    assert found.moment is not None
    assert found.moment.forward == f"test_peak_mode.py:{step.__code__.co_firstlineno + 2}"


def test_a_checkpoint_s_second_forward_pass_makes_activations() -> None:
    from torch.utils.checkpoint import checkpoint

    net, x = nn.Sequential(*[nn.Sigmoid() for _ in range(4)]), torch.ones(A_MIB, requires_grad=True)

    def step() -> None:
        checkpoint(net, x, use_reentrant=False).sum().backward()

    found = peak_of(step)
    assert found.moment is not None
    assert found.moment.phase == "backward"
    assert any(part.category == "activation" and part.count >= 4 for part in found.parts)


class Normed(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(512, 512)
        self.norm = nn.BatchNorm1d(512)  # makes a tensor without a node: the count of its batches

    def forward(self, x: Any) -> Any:
        return self.norm(self.scale(x))


def test_a_backward_pass_is_told_by_the_module_whose_node_runs() -> None:
    net = Normed()
    found = peak_of(lambda: net(torch.ones(64, 512)).sum().backward())
    assert found.moment is not None
    assert (found.moment.module, found.moment.operator) == ("Normed.scale", "AddmmBackward0")


def test_what_was_there_before_does_not_count() -> None:
    old = torch.ones(4 * A_MIB)

    def use() -> None:
        old.add_(1)
        assert old[:5].sum() + torch.ones(A_MIB).sum() > 0

    assert 0 <= peak_of(use).bytes - MIB < 1024


def test_stages_are_phases_outside_models() -> None:
    record = recorder()
    with record:
        record.stage("setup")
        kept = torch.ones(A_MIB)
        record.stage("call")
    assert kept is not None
    assert record.peak("cpu").moment.phase == "setup"
    assert record.devices() == ("cpu",)
    assert record.peak("cuda:0").bytes == 0


class Net(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        return x


def train(steps: int = 3) -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(torch.ones(512, 256)), torch.zeros(512, 256)).backward()
        optimizer.step()


def attend() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
    layer(torch.ones(8, 64, 64)).sum().backward()


def used_twice() -> None:
    # A backward pass adds the second gradient into the first one's memory; under a mode it makes another.
    weight = torch.ones(4 * A_MIB, requires_grad=True)
    (weight * weight).sum().backward()


def used_three_times() -> None:
    weight = torch.ones(4 * A_MIB, requires_grad=True)
    twice = weight * 2
    (twice.sin() + twice.cos() + twice).sum().backward()


@pytest.mark.parametrize("function", [train, attend, used_twice, used_three_times])
def test_the_peak_is_that_of_torch_s_own_allocator(function: Callable[[], object]) -> None:
    function()  # what is made once
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = counted = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        counted = max(counted, now)
    found = peak_of(function)
    assert found.bytes == pytest.approx(counted, rel=0.005)
    assert max(sum(step.alive.values()) for step in found.steps) == found.bytes


def test_a_transformer_keeps_its_fast_path_for_inference() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 1024, batch_first=True).eval()

    def infer() -> None:
        with torch.inference_mode():
            layer(torch.ones(8, 128, 64))

    found = peak_of(infer)
    assert found.moment is not None
    assert found.moment.operator == "_transformer_encoder_layer_fwd.default"


# What no instrument may change: each kind ends as it does alone.


def modified_in_place() -> None:
    a = torch.ones(4, requires_grad=True)
    b = a.exp()
    b.add_(1)
    b.sum().backward()


def backward_twice() -> None:
    loss = torch.ones(4, requires_grad=True).exp().sum()
    loss.backward()
    loss.backward()


def hooks_of_saved_tensors() -> int:
    seen: list[int] = []

    def pack(x: Any) -> Any:
        seen.append(1)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        torch.ones(4, requires_grad=True).exp().sum().backward()
    return len(seen)


def fake_tensors() -> str:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return str((torch.ones(1 << 20) * 2).shape)


def reentrant_checkpoint() -> float:
    from torch.utils.checkpoint import checkpoint

    a = torch.ones(4, requires_grad=True)
    checkpoint(lambda x: x.exp().sin(), a, use_reentrant=True).sum().backward()
    return float(a.grad.sum())


def error_in_a_module() -> None:
    nn.Sequential(nn.Sigmoid(), nn.Linear(3, 3))(torch.ones(4))


def of_higher_order() -> str:
    from torch._higher_order_ops.out_dtype import out_dtype

    values = torch.ones(4, 4, dtype=torch.int8)
    return str(out_dtype(torch.ops.aten.mm.default, torch.int32, values, values).dtype)


class Tagged(torch.Tensor):  # type: ignore[misc]
    pass


KINDS: Final[dict[str, Callable[[], object]]] = {
    "traced": lambda: str(torch.jit.trace(lambda a: a * 2 + 1, torch.ones(4))(torch.ones(4))),
    "scripted": lambda: str(torch.jit.script(nn.Linear(4, 4))(torch.ones(2, 4)).shape),
    "modified in place": modified_in_place,
    "backward twice": backward_twice,
    "vmap of grad": lambda: str(torch.func.vmap(torch.func.grad(lambda a: (a * 2).sin().sum()))(torch.ones(3, 4))),
    "jacrev": lambda: str(torch.func.jacrev(lambda a: a.sin())(torch.ones(3))),
    "gradcheck": lambda: torch.autograd.gradcheck(
        lambda a: a.sin(), torch.ones(3, dtype=torch.double, requires_grad=True)
    ),
    "swapped": lambda: torch.utils.swap_tensors(torch.ones(3), torch.ones(4)),
    "hooks of saved tensors": hooks_of_saved_tensors,
    "fake": fake_tensors,
    "meta": lambda: str((torch.ones(1 << 20, device="meta") * 2).shape),
    "nested": lambda: str(torch.nested.nested_tensor([torch.ones(3), torch.ones(4)]).is_nested),
    "quantized": lambda: str(torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8).dtype),
    "mkldnn": lambda: str(torch.ones(4, 4).to_mkldnn().is_mkldnn),
    "sparse": lambda: str(torch.eye(4).to_sparse() @ torch.ones(4, 4)),
    "reentrant checkpoint": reentrant_checkpoint,
    "error in a module": error_in_a_module,
    "subclass": lambda: type(torch.ones(4).as_subclass(Tagged) * 2).__name__,
    "of higher order": of_higher_order,
    "random": lambda: str(torch.manual_seed(1) and torch.rand(4)),
}


def outcome(function: Callable[[], object]) -> tuple[str, object]:
    try:
        return "returned", function()
    except Exception as error:  # noqa: BLE001 - each kind has its own
        return type(error).__name__, str(error)


@pytest.mark.filterwarnings("ignore")  # torch's own, of what is deprecated
@pytest.mark.parametrize("kind", KINDS)
def test_code_ends_as_it_does_alone(kind: str) -> None:
    alone = outcome(KINDS[kind])
    with recorder():
        assert outcome(KINDS[kind]) == alone


@pytest.mark.filterwarnings("ignore")
def test_what_is_not_told_is_said() -> None:
    assert peak_of(KINDS["traced"]).lacks == (peak_mode.TRACED,)
    assert peak_of(KINDS["mkldnn"]).lacks == (peak_mode.OPAQUE,)
    compiled = torch.compile(lambda x: x.sin() + x.cos(), backend="eager")
    assert peak_of(lambda: compiled(torch.ones(4))).lacks == (peak_mode.COMPILED,)


def test_code_that_must_be_compiled_whole_is_compiled_after_it_was_recorded() -> None:
    compiled = torch.compile(lambda x: x.sin() + x.cos(), backend="eager", fullgraph=True)
    assert peak_of(lambda: compiled(torch.ones(4))).lacks == (peak_mode.COMPILED,)
    assert compiled(torch.ones(4)).shape == (4,)


def hooks_registered() -> list[object]:
    modules = torch.nn.modules.module
    names = [name for name in vars(modules) if name.startswith("_global_")]
    return [len(value) if isinstance(value := vars(modules)[name], dict) else value for name in names]


def test_everything_is_put_back() -> None:
    def state() -> list[object]:
        return [
            *hooks_registered(),
            nn.Module._apply,
            torch.overrides.has_torch_function,
            torch.jit._trace._trace_impl,
            threading.getprofile(),
        ]

    before = state()
    with contextlib.suppress(ValueError), recorder():
        assert state() != before
        raise ValueError
    assert state() == before
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_no_object_of_the_user_is_kept_alive() -> None:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    record = recorder()
    with record:
        net(torch.ones(2, 256)).sum().backward()
        optimizer.step()
    kept = [weakref.ref(net), weakref.ref(optimizer), weakref.ref(net.layers[0].weight)]
    del net, optimizer
    gc.collect()
    assert [one() for one in kept] == [None] * 3
    assert record.peak("cpu").bytes


def test_a_fault_of_the_record_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(peak_places.Places, "place", fails)
    record = recorder()
    with record:
        assert float(nn.Linear(2, 2)(torch.zeros(1, 2)).detach().sum() * 0) == 0
    assert record.peak("cpu").bytes == 0
    assert record.peak("cpu").lacks == (f"{peak_mode.FAULT} (RuntimeError: broken)",)


def test_a_backward_pass_that_has_other_steps_under_a_mode_is_told() -> None:
    weight = torch.ones(4 * A_MIB, requires_grad=True)
    assert peak_of(lambda: (weight * 1).prod().backward()).lacks == (peak_mode.OTHER_STEPS.format("prod"),)
    loss, given = nn.functional.binary_cross_entropy_with_logits, (weight, torch.ones(4 * A_MIB))
    name = "binary_cross_entropy_with_logits"
    weighed = peak_of(lambda: loss(*given, pos_weight=torch.ones(1)).backward())
    assert weighed.lacks == (peak_mode.OTHER_STEPS.format(name),)
    assert (weighed.moment.operator if weighed.moment else "").startswith("BinaryCrossEntropyWithLogits")
    assert peak_of(lambda: loss(*given).backward()).lacks == ()
