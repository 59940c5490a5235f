"""What filled a CUDA device at its peak, told of code whose memory is known: each truth follows from the sizes alone.

Beside them stands what torch's counters say of a run without instruments: a record changes them by no byte, and its rows add
up to them.
"""

from __future__ import annotations

import gc
import io
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpuleak.adapters.torch.settle_steps import free_workspaces_now
from tests.cuda_standin.test_cases import ON_THE_STAND_IN, needs_cuda_build

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.model.peak_parts import Peak

pytestmark = pytest.mark.slow
if needs_cuda_build.args[0]:  # before torch is imported: every search of the tests beside these would walk its objects
    pytest.skip(needs_cuda_build.kwargs["reason"], allow_module_level=True)
torch: Any = pytest.importorskip("torch", reason="torch is not installed")
nn = torch.nn

from tests.support import peak_cases  # noqa: E402 - skips the file without torch
from tests.support.peak_cases import A_MIB, MIB, Table, Truth, line_of  # noqa: E402

ON: Final[dict[str, Any]] = {"device": "cuda"}


CASES: Final = Table()
case = CASES.case


@case(8, 1, 8, "inside", "", "", "no operator")
def raw_memory() -> None:
    torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(8 * MIB))


@case(8, 1, 8, "inside", "", "", "no operator")
def a_storage_alone() -> None:
    assert torch.UntypedStorage(8 * MIB, **ON).nbytes() == 8 * MIB


@case(12, 1, 8, "inside", "", "", "no operator")
def a_storage_resized_beside_its_tensor() -> None:
    tensor = torch.empty(4 * A_MIB, **ON)
    tensor.untyped_storage().resize_(8 * MIB)


@case(16, 1, 4, "gradient", "backward")
def beside_a_hook() -> None:
    # The leaf, its double, the gradient that the hook keeps, and the leaf's own: of the thread's last line, not of the hook's.
    kept: list[Any] = []
    weight = torch.ones(4 * A_MIB, requires_grad=True, **ON)
    double = weight * 2
    double.register_hook(lambda gradient: kept.append(gradient.clone()))
    double.sum().backward()  # here


@case(8, 1, 8, "held", "call")
def read_from_a_file() -> None:
    # A storage is moved to the device by no operator.
    file = io.BytesIO()
    torch.save(torch.ones(8 * A_MIB), file)
    file.seek(0)
    read = torch.load(file, map_location="cuda")  # here
    assert read.is_cuda


@case(8, 1, 4, "activation", "forward")
def normalised_by_batch() -> None:
    images = torch.empty(16, 64, 32, 32, **ON)  # here
    assert nn.BatchNorm2d(64, **ON)(images).requires_grad


@case(8, 1, 6, "held", "call")
def on_another_stream() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        first = torch.empty(6 * A_MIB, **ON)  # here
        second = torch.empty(2 * A_MIB, **ON)
    assert len(first) > len(second)


@case(20, 2, 4, "optimizer state", "optimizer")
def state_of_adam() -> None:
    weight = nn.Parameter(torch.empty(4 * A_MIB, **ON))
    weight.grad = torch.empty(4 * A_MIB, **ON)
    torch.optim.Adam([weight]).step()  # here


@case(0, 1, 0, "inside", "call", "", "sort")
def a_buffer_of_an_operator() -> None:
    values = torch.empty(4 * A_MIB, **ON)
    assert values.sort().values.shape == values.shape  # here


@case(20, 1, 19.5, "temporary", "call")
def a_block_that_is_not_split() -> None:
    assert len(torch.empty(39 * A_MIB // 2, **ON))  # here


@case(0.5, 1024, 4 / MIB, "held", "call")
def many_small_ones() -> None:
    kept = [torch.empty(1, **ON) for _ in range(1024)]  # here
    assert kept


@case(16.5, 2, 8, "temporary", "call")
def a_statement_s_temporaries() -> None:
    x = torch.empty(A_MIB // 2, **ON).view(1, -1)
    assert x.expand(16, -1).contiguous().abs().shape  # here


@case(8, 1, 8, "held", "call")
def moved_to_the_device() -> None:
    data = torch.ones(8 * A_MIB).to("cuda")  # here
    assert len(data)


@case(16, 1, 8, "gradient", "backward", "Embedding")
def a_dense_gradient_of_an_embedding() -> None:
    net = nn.Embedding(32768, 64, **ON)
    net(torch.zeros(4, dtype=torch.long, **ON)).sum().backward()  # here


@case(24, 6, 4, "held", "call")
def a_growing_list() -> None:
    kept = []
    for _ in range(6):
        kept.append(torch.empty(4 * A_MIB, **ON))  # here
    assert kept


@case(0, 1, 16, "inside", "forward", "TransformerEncoderLayer", "transformer_encoder_layer_fwd")
def by_the_fast_path_of_a_transformer() -> None:
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, **ON).eval()
    with torch.inference_mode():
        layer(torch.empty(8, 512, 256, **ON))  # here


@case(8, 1, 4, "held", "call")
def in_a_graph() -> None:
    x, graph = torch.empty(4 * A_MIB, **ON), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2  # here
    assert y.shape == x.shape


@case(0, 1, 4, "held", "forward", "Conv2d")
def convolved() -> None:
    # On a device the peak has cuDNN's workspace too, of a size that it chooses.
    layer, images = nn.Conv2d(16, 16, 3, padding=1, **ON), torch.empty(16, 16, 64, 64, **ON)
    with torch.no_grad():
        made = layer(images)  # here
    assert made.shape == images.shape


if not ON_THE_STAND_IN:  # which has no cuDNN for recurrent layers

    @case(0, 1, 8, "held", "forward", "LSTM")
    def recurrent() -> None:
        layer, steps = nn.LSTM(512, 512, 2, dropout=0.5, **ON), torch.empty(64, 64, 512, **ON)
        with torch.no_grad():
            made, _ = layer(steps)  # here
        assert made.shape == steps.shape


@pytest.fixture(autouse=True)
def device() -> None:
    torch.empty(1, **ON)
    gc.collect()
    torch.cuda.empty_cache()


def let_go() -> None:
    """Free what the run before has left: in cycles, and in the thread that has run its backward pass.

    A pass that has ended may still be held there, and is let go before another begins.
    """
    gc.collect()
    empty = torch.empty(0, requires_grad=True, **ON)
    torch.autograd.grad(empty * 2, empty, torch.empty(0, **ON))


def counted(function: Callable[[], object]) -> tuple[int, int, int]:
    """Return what torch has counted: the peak of blocks, of what was asked for, and workspaces."""
    let_go()
    free_workspaces_now()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    function()
    after = torch.cuda.memory_stats()
    free_workspaces_now()
    workspaces = after["allocated_bytes.all.current"] - torch.cuda.memory_allocated()
    blocks, asked = (
        after[f"{name}.all.peak"] - before[f"{name}.all.current"] for name in ("allocated_bytes", "requested_bytes")
    )
    return blocks, asked, workspaces


def peak_of(function: Callable[[], object]) -> Peak:
    from pytest_gpuleak.adapters.registry import own_frameworks

    let_go()
    record: Any = own_frameworks().peak_recorder(lambda file: file in (__file__, peak_cases.__file__), "cuda:0")
    with record:
        function()
    found: Peak = record.peak("cuda:0")
    assert found.bytes == sum(part.bytes for part in found.parts) + found.unsplit_bytes + found.unexplained_bytes
    return found


ALL: Final = [*CASES, *peak_cases.CASES.on("cuda")]


@pytest.mark.parametrize(("function", "truth"), ALL, ids=[function.__name__ for function, _ in ALL])
def test_the_rows_add_up_and_name_the_part(function: Callable[[], object], truth: Truth) -> None:
    function()  # what is made once
    blocks, asked, workspaces = counted(function)
    found = peak_of(function)
    assert (found.lacks, found.unexplained_bytes, found.workspaces_bytes) == ((), 0, workspaces)
    if workspaces:
        assert blocks - workspaces <= found.bytes <= blocks
    else:
        assert found.bytes == blocks
        assert sum(part.bytes for part in found.parts) <= asked
    assert (truth.peak == 0) or 0 <= found.bytes - truth.peak * MIB < MIB // 8
    assert (found.moment.phase if found.moment else "") == truth.phase
    told = [
        (part.category, part.created and part.created.line, part.module, part.count, part.bytes, part.note)
        for part in found.parts
    ]
    bytes_of = truth.number * truth.each * MIB
    wanted = (truth.category, line_of(function, truth), truth.module, truth.number)
    assert any(one[:4] == wanted and one[4] == (bytes_of or one[4]) and truth.note in one[5] for one in told), told


def product() -> None:
    a = torch.ones(512, 512, **ON)
    assert (a @ a).shape == a.shape


def test_workspaces_are_beside_the_peak_also_of_other_streams() -> None:
    def products() -> None:
        product()
        with torch.cuda.stream(torch.cuda.Stream()):
            product()

    found = peak_of(products)
    assert (found.bytes, found.workspaces_bytes) == (2 * MIB, counted(products)[2])
    assert (found.workspaces_bytes or 0) >= 16 * MIB


def test_what_the_graph_of_a_gradient_saves_is_an_activation() -> None:
    weight = torch.empty(2 * A_MIB, requires_grad=True, **ON)
    for _ in range(1000):  # the engine's thread, which makes that graph, has not come so far with its numbers
        weight.view(-1)

    def differentiate() -> None:
        (slope,) = torch.autograd.grad((weight.sin() * weight).sum(), weight, create_graph=True)
        assert torch.cat([slope] * 8).requires_grad

    told = [(part.category, part.count) for part in peak_of(differentiate).parts if part.note.startswith("backward of")]
    assert ("activation", 2) in told  # the cosine, and what it is multiplied by


def test_what_a_run_frees_of_what_was_there_is_told() -> None:
    kept = [torch.empty(2 * A_MIB, **ON)]

    def replace() -> None:
        kept.clear()
        kept.append(torch.empty(8 * A_MIB, **ON))

    found = peak_of(replace)
    assert [part.bytes for part in found.parts] == [8 * MIB]
    assert found.lacks == ("2.0 MiB of what was there before had been released: the parts have more",)


def test_the_users_own_record_stays_and_the_tensors_alone_are_told() -> None:
    memory = torch.cuda.memory
    memory._record_memory_history(enabled="all", context=None)
    try:
        found = peak_of(product)
        assert torch._C._cuda_isHistoryEnabled()
    finally:
        memory._record_memory_history(enabled=None)
    assert (found.bytes, found.workspaces_bytes) == (2 * MIB, None)
    assert found.lacks == ("memory beyond tensors, since the allocator's history is being recorded by somebody else",)


def test_a_record_that_the_run_ends_leaves_the_tensors() -> None:
    def ends() -> None:
        product()
        torch.cuda.memory._record_memory_history(enabled=None)

    found = peak_of(ends)
    assert (found.bytes, found.workspaces_bytes) == (2 * MIB, None)
    assert found.lacks == ("memory beyond tensors, since the run has ended the record of the allocator's history",)
