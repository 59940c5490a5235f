"""Put back the content of models that tests share: all layouts and places, and nothing is kept alive meanwhile."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.torch import shared_models
from pytest_gpuleak.adapters.torch.shared_models import keep_values
from pytest_gpuleak.session.rerun.unseen.restoring import all_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch
torch: Any = pytest.importorskip("torch")

NAN = float("nan")
TENSORS: dict[str, Callable[[], Any]] = {
    "float32": lambda: torch.arange(6.0).view(2, 3),
    "no dimension": lambda: torch.tensor(3.0),
    "not contiguous": lambda: torch.arange(6.0).view(2, 3).t(),
    "a view": lambda: torch.arange(6.0)[1:4],
    "bool": lambda: torch.tensor([True, False]),
    "bfloat16": lambda: torch.ones(3, dtype=torch.bfloat16),
    "complex": lambda: torch.ones(3, dtype=torch.complex128),
    "int8": lambda: torch.ones(3, dtype=torch.int8),
    "NaN": lambda: torch.tensor([NAN, 1.0]),
    "channels last": lambda: torch.rand(1, 3, 2, 2).to(memory_format=torch.channels_last),
    "a leaf that is trained": lambda: torch.ones(3, requires_grad=True),
    "part of a graph": lambda: torch.ones(3, requires_grad=True) * 2,
}


@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
def test_a_tensor_that_was_changed_in_place(make: Callable[[], Any]) -> None:
    tensor = make()
    before, version = tensor.detach().clone(), tensor._version
    restore = all_of(keep_values(lambda: {"tensor": tensor}))
    tensor.data.zero_()
    restore()
    assert torch.equal(tensor.detach().nan_to_num(7), before.nan_to_num(7))
    assert tensor._version == version, "a graph that has saved it can no longer be used"


@pytest.mark.parametrize(
    "replaced", [torch.zeros(4), torch.zeros(3, dtype=torch.int64)], ids=["other shape", "other dtype"]
)
def test_a_tensor_of_another_kind_is_left_as_it_is(replaced: Any) -> None:
    layer = torch.nn.Module()
    layer.hidden = torch.ones(3)
    restore = all_of(keep_values(lambda: {"layer": layer}))
    layer.hidden = replaced
    restore()
    assert layer.hidden is replaced
    assert not replaced.any()


def trained() -> SimpleNamespace:
    """Return a model in training: parameters, buffers, a hidden state, an optimizer and a scheduler."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    model.hidden, model.calls = torch.zeros(2, 3), 0
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    return SimpleNamespace(model=model, optimizer=optimizer, scheduler=scheduler)


def train(state: SimpleNamespace) -> None:
    result = state.model(torch.arange(6.0).view(2, 3) + state.model.hidden)
    state.model.hidden = result.detach() + 1
    state.model.calls += 1
    result.pow(3).sum().backward()  # gradients add up
    state.optimizer.step()
    state.scheduler.step()


def described(state: SimpleNamespace) -> str:
    model = state.model
    gradients = [parameter.grad for parameter in model.parameters()]
    return repr([
        model.state_dict(), model.hidden, model.calls, model.training, gradients,
        state.optimizer.state_dict(), state.scheduler.state_dict(), state.optimizer.param_groups,
    ])  # fmt: skip


def holders() -> dict[str, Callable[[SimpleNamespace], dict[str, object]]]:
    """Return ways in which a fixture may give a test a model and its optimizer."""
    return {
        "by itself": vars,
        "in a tuple": lambda state: {"fixture": (state.model, state.optimizer, state.scheduler)},
        "in an object": lambda state: {"fixture": state},
        "in a dict": lambda state: {"fixture": {"run": [state.model, state.optimizer, state.scheduler]}},
    }


@pytest.mark.parametrize("held", holders().values(), ids=holders())
def test_a_second_step_of_training(held: Callable[[SimpleNamespace], dict[str, object]]) -> None:
    state = trained()
    train(state)
    after_one, owners = described(state), held(state)
    restore = all_of(keep_values(lambda: owners))
    train(state)
    state.model.eval()
    assert described(state) != after_one
    restore()
    assert described(state) == after_one


def test_a_hidden_state_that_is_part_of_a_graph() -> None:
    weight = torch.ones(3, requires_grad=True)
    layer = torch.nn.Module()
    layer.hidden = weight * 2
    restore = all_of(keep_values(lambda: {"layer": layer}))
    layer.hidden = weight * layer.hidden
    restore()
    assert layer.hidden.tolist() == [2, 2, 2]
    layer.hidden.sum().backward()
    assert weight.grad is not None


def test_tensors_of_inference_mode() -> None:
    with torch.inference_mode():
        tensor = torch.ones(3)
    restore = all_of(keep_values(lambda: {"tensor": tensor}))
    with torch.inference_mode():
        tensor.zero_()
    restore()
    assert tensor.tolist() == [1, 1, 1]


def test_nothing_is_kept_alive() -> None:
    state = trained()
    train(state)
    owners = {"state": state}
    gone = [weakref.ref(value) for value in (state.model, state.optimizer, state.model.hidden)]
    restore = all_of(keep_values(lambda: owners))
    del state
    owners.clear()
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3
    restore()


def test_another_owner_of_the_same_name_is_left_as_it_is() -> None:
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    owners = {"model": first}
    restore = all_of(keep_values(lambda: owners))
    owners["model"] = second
    before = second.weight.detach().clone()
    restore()
    assert torch.equal(second.weight, before)


def test_numbers_under_keys_that_are_objects_are_left_as_they_are() -> None:
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
    optimizer.steps = {optimizer: 1, "all": 1}
    restore = all_of(keep_values(lambda: {"optimizer": optimizer}))
    optimizer.steps.update({optimizer: 2, "all": 2})
    restore()
    assert optimizer.steps == {optimizer: 2, "all": 1}


def test_rings_are_followed_once() -> None:
    model = torch.nn.Linear(2, 2)
    ring: list[object] = [model]
    ring.append(ring)
    model.others = {"ring": ring}
    before = model.weight.detach().clone()
    restore = all_of(keep_values(lambda: {"ring": ring}))
    model.weight.data.zero_()
    restore()
    assert torch.equal(model.weight, before)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_models, "MOST_BYTES", 100)
    monkeypatch.setattr(shared_models, "MOST_VISITED", 50)
    small, large, wide = torch.ones(2), torch.ones(100), torch.nn.Module()
    wide.parts = [torch.ones(1) for _ in range(60)]
    restore = all_of(keep_values(lambda: {"wide": wide, "large": large, "small": small}))
    for tensor in (small, large, *wide.parts):
        tensor.zero_()
    restore()
    assert (small.sum(), large.sum(), sum(wide.parts)) == (2, 0, 0)


def test_what_tests_leak_is_not_noted_with_each() -> None:
    """Each leak into a list, or into globals, would take longer to check than the one before."""
    crowd = [torch.ones(1) for _ in range(shared_models.FEW + 1)]
    owners: dict[str, object] = {f"global{number}": torch.ones(1) for number in range(shared_models.MOST_LOOSE + 5)}
    restore = all_of(keep_values(lambda: {"crowd": crowd, **owners}))
    for tensor in (*crowd, *owners.values()):
        tensor.zero_()
    restore()
    assert not any(crowd)
    assert sum(map(bool, owners.values())) == shared_models.MOST_LOOSE


OTHERS: dict[str, Callable[[], Any]] = {
    "meta": lambda: torch.ones(2, device="meta"),
    "sparse": lambda: torch.ones(2).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),  # once ended the process
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_what_is_more_or_less_than_its_bytes_is_passed_over(make: Callable[[], Any]) -> None:
    value, beside = make(), torch.ones(2)
    restore = all_of(keep_values(lambda: {"value": value, "beside": beside}))
    beside.zero_()
    restore()
    assert beside.tolist() == [1, 1]


def test_nothing_to_note() -> None:
    assert keep_values(lambda: {"number": 1, "text": "x", "function": len, "module": pytest, "class": int}) == []
