"""What CUDA's kernels take inside: the sizes that torch's allocator counted on a device of 108 multiprocessors."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from pytest_gpuleak.adapters.torch.cuda_rules import attention_bytes, is_unknown, most_inside, taken_inside  # noqa: E402

MIB = 1 << 20
MATRIX = torch.ones(1024, 2048, device="meta")
LINE = torch.ones(1 << 20, device="meta")


@pytest.mark.parametrize(
    ("name", "args", "size"),
    [
        ("sum.dim_IntList", (MATRIX, [0]), 16 * MIB),
        ("sum.dim_IntList", (MATRIX, [-2], True), 16 * MIB),
        ("sum.dim_IntList", (torch.ones(4096, 128, device="meta"), [0]), 4 * MIB),
        ("sum.dim_IntList", (MATRIX, [1]), 0),
        ("sum.dim_IntList", (MATRIX.t(), [0]), 0),  # its values lie side by side, as below: no rule for other strides
        ("sum.default", (LINE,), 512),
        ("mean.default", (LINE,), 512),
        ("var.correction", (MATRIX, [0]), 64 * MIB),
        ("var.correction", (LINE,), 2048),
        ("argmax.default", (MATRIX, 0), 64 * MIB),
        ("linalg_vector_norm.default", (LINE, 2), 512),
        ("linalg_vector_norm.default", (MATRIX, 2, [0]), 16 * MIB),
        ("_softmax_backward_data.default", (MATRIX, MATRIX, -1, torch.float32), 8 * MIB),
        ("add.Tensor", (MATRIX, MATRIX), 0),
        ("sum.default", (torch.ones(0, device="meta"),), 0),
    ],
)
def test_buffers_of_kernels(name: str, args: tuple[object, ...], size: int) -> None:
    assert taken_inside(name, args) == size


@pytest.mark.parametrize(
    ("count", "width", "rows", "counted"), [(8192, 128, 20000, 5014528), (4096, 256, 8000, 4814336)]
)
def test_an_embeddings_gradient_takes_partial_sums(count: int, width: int, rows: int, counted: int) -> None:
    gradient, indices = torch.ones(count, width, device="meta"), torch.ones(count, device="meta", dtype=torch.int64)
    found = taken_inside("embedding_dense_backward.default", (gradient, indices, rows, -1, False))
    assert found == pytest.approx(counted, rel=0.05)
    few = taken_inside("embedding_dense_backward.default", (gradient[:3072], indices[:3072], rows, -1, False))
    assert few == 0


def test_attention_keeps_its_result_and_a_number_for_each_row() -> None:
    assert attention_bytes(torch.ones(2, 4, 512, 64, device="meta", dtype=torch.bfloat16)) == (
        MIB // 2,
        2 * 4 * 512 * 4,
    )


def test_sorting_is_in_doubt_up_to_more_than_it_takes() -> None:
    assert [name for name in ("sort.default", "_fft_r2c.default", "linalg_qr.default", "mm.default", "linalg_vector_norm.default")
            if is_unknown(name)] == ["sort.default", "_fft_r2c.default", "linalg_qr.default"]  # fmt: skip
    assert most_inside([LINE], [LINE, LINE.long()]) >= 21330432  # counted
