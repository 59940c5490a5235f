"""What torch's C++ objects hold is traced to a root that can be edited, by edges that can be typed."""

from __future__ import annotations

import gc
import sys
import warnings
from typing import Any

import pytest

from pytest_gpuleak.adapters.torch import autograd_walk
from pytest_gpuleak.adapters.torch.references import TorchReferences
from pytest_gpuleak.explain.explain import explain

pytestmark = [pytest.mark.torch, pytest.mark.interpreter, pytest.mark.usefixtures("small_heap")]


@pytest.fixture(autouse=True)
def _own_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd_walk, "_spent", [0])


def count_tensors(torch: Any) -> int:
    """The tensors that have a Python object."""
    return sum(torch.Tensor in type(value).__mro__ for value in gc.get_objects())


def texts(targets: list[Any]) -> list[str]:
    """The holders' texts; the caller's locals do not count."""
    gc.collect()
    return [found.holder.text for found in explain(targets, ignore={id(sys._getframe(1)), id(sys._getframe())})]


def leads_to(text: str, app: Any) -> Any:
    return eval(text, {"leaky_app": app})


def test_the_gradient_of_a_parameter(app: Any, torch: Any) -> None:
    app.MODEL = torch.nn.Linear(2, 2)
    app.MODEL(torch.ones(1, 2)).sum().backward()
    assert texts([app.MODEL.weight.grad]) == ["leaky_app.MODEL.weight.grad"]


def test_the_gradient_that_an_intermediate_result_retains(app: Any, torch: Any) -> None:
    app.HIDDEN = torch.zeros(4, requires_grad=True) * 2
    app.HIDDEN.retain_grad()
    app.HIDDEN.sum().backward()
    assert texts([app.HIDDEN.grad]) == ["leaky_app.HIDDEN.grad"]


def test_the_base_of_a_view(app: Any, torch: Any) -> None:
    app.HISTORY.append(torch.zeros(1000)[:2])
    assert texts([app.HISTORY[0]._base]) == ["leaky_app.HISTORY[0]._base"]


def test_an_activation_that_a_loss_retains(app: Any, torch: Any) -> None:
    weight = torch.zeros(4, requires_grad=True)
    hidden = weight.exp()
    app.HISTORY.append((hidden * hidden).sum())
    box = [hidden]
    del hidden, weight
    (text,) = texts(box)
    assert text == "leaky_app.HISTORY[0].grad_fn.next_functions[0][0]._saved_self"
    assert leads_to(text, app) is box[0]


def test_a_leaf_that_only_a_graph_holds(app: Any, torch: Any) -> None:
    app.HISTORY.append((torch.zeros(4, requires_grad=True) * 2).sum())
    box = [app.HISTORY[0].grad_fn.next_functions[0][0].next_functions[0][0].variable]
    (text,) = texts(box)
    assert text == "leaky_app.HISTORY[0].grad_fn.next_functions[0][0].next_functions[0][0].variable"
    assert leads_to(text, app) is box[0]


def test_a_list_of_saved_tensors_is_written_with_its_index(app: Any, torch: Any) -> None:
    index = torch.tensor([0, 1])
    app.HISTORY.append(torch.zeros(4, requires_grad=True)[index] * 2)
    box = [index]
    del index
    (text,) = texts(box)
    assert leads_to(text, app) is box[0]


def test_a_node_that_python_holds(app: Any, torch: Any) -> None:
    leaf = torch.zeros(4, requires_grad=True)
    app.NODE = (leaf.exp() * 2).grad_fn
    box = [leaf]
    del leaf
    assert texts(box) == ["leaky_app.NODE.next_functions[0][0].next_functions[0][0].variable"]


def test_custom_functions(app: Any, torch: Any) -> None:
    class Scale(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, value: Any, mask: Any) -> Any:
            ctx.save_for_backward(mask)
            ctx.scale = mask + 1
            app.BOX = [ctx.scale]
            return value * mask

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad, None

    mask = torch.ones(3)
    app.LOSS = Scale.apply(torch.ones(3, requires_grad=True), mask).sum()
    box = [mask, app.BOX.pop()]
    del mask
    node = "leaky_app.LOSS.grad_fn.next_functions[0][0]"
    assert texts(box) == [f"{node}.saved_tensors[0]", f"{node}.scale"]


def test_what_pack_hooks_made_is_found_and_unpack_hooks_are_not_called(app: Any, torch: Any) -> None:
    box: list[Any] = []

    def pack(saved: Any) -> Any:
        box.append(saved.detach().clone())
        return ["packed", box[-1]]

    def unpack(packed: Any) -> Any:
        raise AssertionError("a user's hook")

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        app.LOSS = torch.zeros(4, requires_grad=True).exp().sum()
    (text,) = texts(box)
    assert text == "leaky_app.LOSS.grad_fn.next_functions[0][0]._raw_saved_result.data[1]"
    assert leads_to(text, app) is box[0]


def test_what_an_unpack_hook_holds_is_its_graphs(app: Any, torch: Any) -> None:
    """A checkpoint's hooks hold its function, and so a model; nothing but C++ refers to them."""
    box = [torch.ones(4)]

    def loss_of(constant: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda _: constant):
            return torch.zeros(4, requires_grad=True).exp().sum()

    app.LOSS = loss_of(box[0])
    (text,) = texts(box)
    node = "leaky_app.LOSS.grad_fn.next_functions[0][0]"
    assert text == f"{node}._raw_saved_result.unpack_hook.__closure__[0].cell_contents"
    assert leads_to(text, app) is box[0]


def test_a_saved_tensor_that_was_written_to_is_read_raw(app: Any, torch: Any) -> None:
    hidden = torch.zeros(4, requires_grad=True) * 2
    app.LOSS = (hidden * hidden).sum()
    hidden.detach().add_(1)
    box = [hidden]
    del hidden
    (text,) = texts(box)
    assert text == "leaky_app.LOSS.grad_fn.next_functions[0][0]._raw_saved_self.data"
    assert leads_to(text, app) is box[0]


def test_an_activation_of_which_a_view_was_saved_that_python_never_saw(app: Any, torch: Any) -> None:
    hidden = torch.zeros(2, 3, 4, requires_grad=True).exp()
    app.LOSS = torch.nn.Linear(4, 4)(hidden).sum()
    box = [hidden]
    del hidden
    (text,) = texts(box)
    assert text.startswith("leaky_app.LOSS.grad_fn.next_functions[0][0]")
    assert text.endswith("._base")
    assert leads_to(text, app) is box[0]


def test_tensors_that_torch_alone_holds_are_told(app: Any, torch: Any) -> None:
    hidden = torch.zeros(4, requires_grad=True) * 2
    seen = (hidden * hidden).sum()
    app.HELD = [torch.zeros(2), seen, hidden[:1]]
    box = [*app.HELD, hidden]
    expected = {id(hidden)}
    del hidden, seen
    assert TorchReferences().held_alone(box) == expected


def test_a_long_way_through_a_graph_is_shortened(app: Any, torch: Any) -> None:
    leaf = value = torch.zeros(4, requires_grad=True)
    for _ in range(40):
        value = value + 1
    app.LOSS = value
    box = [leaf]
    del leaf, value
    step = ".next_functions[0][0]"
    assert texts(box) == [f"leaky_app.LOSS.grad_fn{step * 3} … 34 nodes … {step * 3}.variable"]


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_graph_behind_a_gradient(app: Any, torch: Any) -> None:
    app.WEIGHT = torch.ones(3, requires_grad=True)
    other = torch.ones(3, requires_grad=True)
    (app.WEIGHT**2 * other).sum().backward(create_graph=True)
    other.grad = None
    box = [other]
    del other
    (text,) = texts(box)
    assert text.startswith("leaky_app.WEIGHT.grad.grad_fn.next_functions[")
    assert leads_to(text, app) is box[0]


def test_parameters_and_buffers_that_a_scripted_module_keeps(app: Any, torch: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        app.SCRIPT = torch.jit.trace(torch.nn.BatchNorm1d(2), torch.zeros(4, 2))
        app.SCRIPT = torch.jit.freeze(app.SCRIPT.eval(), preserved_attrs=["running_mean"])
    box = [app.SCRIPT.running_mean]
    assert texts(box) == ["leaky_app.SCRIPT.running_mean"]


def test_the_example_inputs_that_a_traced_module_keeps(app: Any, torch: Any) -> None:
    inputs = torch.ones(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        app.TRACED = torch.jit.trace(torch.nn.Linear(3, 2), inputs)
    box = [inputs]
    del inputs
    (text,) = texts(box)
    assert text.endswith("._c._retrieve_traced_inputs()['forward'][0]")
    assert leads_to(text, app) is box[0]


def test_the_scales_of_a_quantized_tensor(app: Any, torch: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        app.QUANTIZED = torch.quantize_per_channel(torch.ones(4, 3), torch.ones(4), torch.zeros(4), 0, torch.qint8)
        box = [app.QUANTIZED.q_per_channel_scales(), app.QUANTIZED.q_per_channel_zero_points()]
        found = texts(box)
    assert found == ["leaky_app.QUANTIZED.q_per_channel_scales()", "leaky_app.QUANTIZED.q_per_channel_zero_points()"]


def test_what_a_tensor_that_left_a_transform_wraps(app: Any, torch: Any) -> None:
    def step(value: Any) -> Any:
        app.ESCAPED = value
        return value.sum()

    inputs = torch.ones(4, 3)
    torch.func.vmap(torch.func.grad(step))(inputs)
    wrapped = " (wrapped by torch.func)"
    functorch = torch._C._functorch
    box = [functorch.get_unwrapped(functorch.get_unwrapped(app.ESCAPED))]
    assert texts(box) == [f"leaky_app.ESCAPED{wrapped}{wrapped}"]


def test_constants_of_traced_programs(app: Any, torch: Any) -> None:
    """`TestBatchedMultiOutputGPyTorchModel` of botorch leaves 16 tensors, which its traced program keeps."""
    gc.unfreeze()  # torch's own tables lead to it
    offset = torch.ones(6, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(lambda batch, added=offset: batch + added, torch.zeros(6, 7))
    box = [offset]
    del offset
    (text,) = texts(box)
    _, _, read = text.partition("._python_cu")
    assert read.startswith(".find_function('__torch__.")
    assert eval("unit" + read, {"unit": torch.jit._state._python_cu}) is box[0]


def test_constants_of_another_shape_get_no_object(app: Any, torch: Any) -> None:
    offset = torch.ones(6, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(lambda batch, added=offset: batch + added, torch.zeros(6, 8))
        app.FROZEN = torch.jit.freeze(torch.jit.trace(torch.nn.Linear(3, 2), torch.zeros(4, 3)).eval())
    box = [offset]
    del offset
    gc.collect()
    before = count_tensors(torch)
    assert ".find_function('__torch__." in texts(box)[0]
    assert count_tensors(torch) == before


def test_a_path_may_enter_and_leave_torch_more_than_once(app: Any, torch: Any) -> None:
    leaf = torch.zeros(4, requires_grad=True)
    hidden = leaf * 2
    hidden.note = {"weights": [torch.zeros(9)]}
    app.LOSS = (hidden * hidden).sum()
    box = [hidden.note["weights"][0]]
    del leaf, hidden
    (text,) = texts(box)
    assert text == "leaky_app.LOSS.grad_fn.next_functions[0][0]._saved_self.note['weights'][0]"
    assert leads_to(text, app) is box[0]


def test_asking_changes_nothing(app: Any, torch: Any) -> None:
    app.LEAF = torch.zeros(4, requires_grad=True)
    app.OTHER = torch.zeros(4, requires_grad=True) * 3  # reading its .grad would warn
    hidden = app.LEAF.exp()
    app.LOSS = (hidden * hidden).sum()
    box = [hidden]
    del hidden
    texts(box)
    before = count_tensors(torch)
    version, uses = box[0]._version, box[0]._use_count()
    texts(box)
    assert count_tensors(torch) == before
    assert (box[0]._version, box[0]._use_count()) == (version, uses)
    assert app.LEAF.grad is None


def test_nothing_is_kept_alive(app: Any, torch: Any) -> None:
    hidden = torch.zeros(4, requires_grad=True).exp()
    app.LOSS = (hidden * hidden).sum()
    box = [hidden]
    gone = torch._C._WeakTensorRef(hidden)
    del hidden
    gc.disable()
    try:
        texts(box)
        box.clear()
        assert not gone.expired()
        app.LOSS = None
        assert gone.expired()
    finally:
        gc.enable()


def test_subclasses_and_modes_are_not_asked(app: Any, torch: Any) -> None:
    from torch.overrides import TorchFunctionMode

    class Strict(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("a user's mode")

    class Picky(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, *_: Any, **__: Any) -> Any:
            raise AssertionError("a user's class")

    hidden = torch.zeros(4, requires_grad=True) * 2
    loss = (hidden * hidden).sum()
    with torch._C.DisableTorchFunction():
        app.LOSS = loss.as_subclass(Picky)
    box = [hidden]
    del hidden, loss
    with Strict():
        found = texts(box)
    assert found[0].startswith("leaky_app.LOSS.grad_fn.")


def test_freed_storages_and_failing_reads_give_an_answer(app: Any, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_gpuleak.adapters.torch.autograd_access import TorchAccess

    app.VIEW = torch.zeros(4)[:2]
    box = [app.VIEW._base]
    box[0].untyped_storage().resize_(0)
    assert texts(box) == ["leaky_app.VIEW._base"]
    monkeypatch.setattr(TorchAccess, "read", lambda *_: None)
    monkeypatch.setattr(TorchAccess, "read_node", lambda *_: None)
    assert texts(box) == ["C++ -> torch.Tensor"]


def test_an_array_over_a_dlpack_capsule_is_known_by_its_memory(app: Any, torch: Any) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    tensor = torch.zeros(4)
    app.ARRAY = numpy.from_dlpack(tensor)
    box = [tensor]
    del tensor
    assert texts(box) == ["leaky_app.ARRAY (memory)"]


def test_an_array_that_a_memoryview_looks_into(app: Any, torch: Any) -> None:
    pytest.importorskip("numpy", reason="numpy is not installed")
    array = torch.zeros(4).numpy()
    box = [array.base]
    app.MEMORY = memoryview(array)
    del array
    (text,) = texts(box)
    assert text.startswith("leaky_app.MEMORY")
    assert text.endswith(".base")
