"""Real tensors and arrays: modules, optimisers, views of their memory."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from pytest_gpuleak.explain.explain import explain

pytestmark = [pytest.mark.torch, pytest.mark.interpreter, pytest.mark.usefixtures("small_heap")]


def test_parameters_are_written_as_attributes(app: Any, torch: Any) -> None:
    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            self.body = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
            self.heads = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 1)})

    app.MODEL = Net()
    targets = [app.MODEL.layer.weight, app.MODEL.body[0].bias, app.MODEL.body[1].running_mean]
    targets.append(app.MODEL.heads["a"].weight)
    texts = [found.holder.text for found in explain(targets)]
    assert texts == [
        "leaky_app.MODEL.layer.weight",
        "leaky_app.MODEL.body[0].bias",
        "leaky_app.MODEL.body[1].running_mean",
        "leaky_app.MODEL.heads['a'].weight",
    ]


def test_base_of_a_view(app: Any, torch: Any) -> None:
    app.VIEW = torch.zeros(4)[:2]
    box = [app.VIEW._base]
    holder = explain(box, ignore={id(sys._getframe())})[0].holder
    assert (holder.kind, holder.text) == ("module", "leaky_app.VIEW._base")


def test_values_of_a_sparse_tensor_keep_it_and_its_indices(app: Any, torch: Any) -> None:
    """Other tensors' storages tell which may be a view: this one has none."""
    app.VIEW = torch.eye(4).to_sparse().values()
    box = [app.VIEW._base]
    assert explain(box, ignore={id(sys._getframe())})[0].holder.text == "leaky_app.VIEW._base"


@pytest.mark.parametrize(
    ("hold", "expected"),
    [
        (lambda array: array, ".base"),
        (lambda array: {"a": array}, "['a'].base"),
        (lambda array: {"a": ({"b": array},)}, "['a'][0]['b'].base"),
        (lambda array: [array[1:]], "[0].base.base"),
    ],
)
def test_arrays_over_a_tensors_memory(app: Any, torch: Any, hold: Any, expected: str) -> None:
    pytest.importorskip("numpy", reason="numpy is not installed")
    array = torch.zeros(4).numpy()
    box = [array.base]  # a tensor object of its own, that nothing else refers to
    app.HELD = hold(array)
    del array
    holder = explain(box, ignore={id(sys._getframe())})[0].holder
    assert holder.text == "leaky_app.HELD" + expected
    assert eval(holder.text, {"leaky_app": app}) is box[0]


def test_arrays_of_objects_inside_one_another(app: Any, torch: Any) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")

    def of(value: object) -> Any:
        array = numpy.empty(1, dtype=object)
        array[0] = value
        return array

    box = [torch.zeros(2)]
    for held, expected in (
        (of(of(box[0])), "[0][0]"),
        (of({"x": of(box[0])}), "[0]['x'][0]"),
        (of(({"x": (of(box[0]),)},)), "[0][0]['x'][0][0]"),
    ):
        app.HELD = held
        del held
        assert explain(box, ignore={id(sys._getframe())})[0].holder.text == f"leaky_app.HELD{expected}"
    ring = app.HELD = of(None)
    ring[0] = (ring, of(box[0]))
    assert explain(box, ignore={id(sys._getframe())})[0].holder.text == "leaky_app.HELD[0][1][0]"
    ring[0] = None


def test_local_array_of_a_running_function(torch: Any) -> None:
    pytest.importorskip("numpy", reason="numpy is not installed")

    def run() -> str:
        array = torch.zeros(4).numpy()
        box = [array.base]
        return explain(box)[0].holder.text

    assert run().endswith("local 'array'.base")


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_a_tensor(app: Any, torch: Any, kind: str) -> None:
    box = [torch.zeros(2)]
    app.WEIGHT = torch.nn.Parameter(torch.zeros(2))
    handle = getattr(app.WEIGHT, kind)(lambda *_, kept=box[0]: None)
    name = "_backward_hooks" if kind == "register_hook" else "_post_accumulate_grad_hooks"
    holder = explain(box, ignore={id(sys._getframe())})[0].holder
    assert holder.text == f"leaky_app.WEIGHT.{name}[{handle.id}].__kwdefaults__['kept']"
    assert holder.edit_line is not None


def test_the_hooks_of_a_tensor_of_a_users_class_are_not_asked_for(app: Any, torch: Any) -> None:
    asked: list[object] = []

    class Own(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, function: Any, *rest: Any) -> Any:
            asked.append(function)
            return super().__torch_function__(function, *rest)

    box = [torch.zeros(2)]
    app.WEIGHT = torch.zeros(2).as_subclass(Own).requires_grad_()
    app.WEIGHT.register_hook(lambda *_, kept=box[0]: None)
    asked.clear()
    assert " (inside " in explain(box, ignore={id(sys._getframe())})[0].holder.text
    assert asked == []


# The last two, since each imports torch's compiler, and with it 120,000 objects for each search after it.
def test_optimiser_state(app: Any, torch: Any) -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    app.OPTIMISER = torch.optim.SGD([weight], lr=0.1)
    text = explain([weight], ignore={id(sys._getframe())})[0].holder.text
    assert text == "leaky_app.OPTIMISER.param_groups[0]['params'][0]"


def test_the_line_of_a_users_operator_is_to_be_edited(torch: Any) -> None:
    gc.unfreeze()  # torch's own tables lead to it
    if not hasattr(torch.library, "custom_op"):
        pytest.skip("this torch has no such operators")

    def register(kept: Any) -> None:
        @torch.library.custom_op("gpuleak::held", mutates_args=(), schema="(Tensor a) -> Tensor")  # type: ignore[untyped-decorator]
        def held(a: Any) -> Any:
            return a * kept[0]

    box = [torch.zeros(2)]
    register(box[0])
    holder = explain(box, ignore={id(sys._getframe())})[0].holder
    assert holder.root.startswith("torch._library.")
    assert (holder.edit_file, holder.edit_line) == (__file__, register.__code__.co_firstlineno + 1)
