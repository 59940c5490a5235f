"""What CUDA's kernels take inside: the sizes that torch's allocator counted on a device of 108 multiprocessors."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from pytest_gpuleak.adapters.torch.cuda_rules import attention_bytes, is_fused, most_inside, taken_inside  # noqa: E402

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
    assert taken_inside(name, args, LINE) == size


@pytest.mark.parametrize(
    ("count", "width", "rows", "counted"), [(8192, 128, 20000, 5014528), (4096, 256, 8000, 4814336)]
)
def test_an_embeddings_gradient_takes_partial_sums(count: int, width: int, rows: int, counted: int) -> None:
    gradient, indices = torch.ones(count, width, device="meta"), torch.ones(count, device="meta", dtype=torch.int64)
    found = taken_inside("embedding_dense_backward.default", (gradient, indices, rows, -1, False), gradient)
    assert found == pytest.approx(counted, rel=0.05)
    few = taken_inside("embedding_dense_backward.default", (gradient[:3072], indices[:3072], rows, -1, False), gradient)
    assert few == 0


def test_attention_keeps_its_result_and_a_number_for_each_row() -> None:
    assert attention_bytes(torch.ones(2, 4, 512, 64, device="meta", dtype=torch.bfloat16)) == (
        MIB // 2,
        2 * 4 * 512 * 4,
    )


def test_whole_numbers_that_are_added_up_are_copied() -> None:
    mask, count = LINE > 0, torch.ones((), device="meta", dtype=torch.int64)
    assert taken_inside("sum.default", (mask,), count) == 8 * MIB + 512
    assert taken_inside("sum.default", (LINE.to(torch.bfloat16),), LINE[0]) == 512
    assert taken_inside("any.default", (mask,), mask[0]) == taken_inside("argmax.default", (LINE,), count) // 4


def test_a_distance_s_gradient_has_one_for_each_pair() -> None:
    rows, others, distances = (torch.ones(1024, size, device="meta") for size in (64, 64, 1024))
    assert taken_inside("_cdist_backward.default", (distances, rows, others, 1.0, distances), rows) == 384 * MIB
    assert taken_inside("_pdist_backward.default", (LINE, rows, 1.0, LINE), rows) >= 1023 * MIB // 4


def test_distances_by_a_product_take_the_rows_with_two_values_more() -> None:
    # What CUDA's allocator has counted, less the rows and the result.
    rows, others = torch.ones(1024, 64, device="meta"), torch.ones(512, 64, device="meta")
    made = torch.ones(1024, 512, device="meta")
    assert taken_inside("_euclidean_dist.default", (rows, others), made) == 2895872 - 2490368
    assert taken_inside("_cdist_forward.default", (rows, others, 2.0, None), made) == 2895872 - 2490368
    for others_are in ((rows, others, 1.0, None), (rows, others, 2.0, 2), (rows[:25], others[:25], 2.0, None)):
        assert taken_inside("_cdist_forward.default", others_are, made) == 0


def test_what_sorts_or_looks_at_values_is_in_doubt_up_to_more_than_it_takes() -> None:
    names = ("sort.default", "_fft_r2c.default", "linalg_qr.default", "_embedding_bag.default", "_transformer_encoder_layer_fwd.default",
             "mm.default", "linalg_vector_norm.default")  # fmt: skip
    assert [most_inside(name, (LINE,), [LINE]) > 0 for name in names] == [True] * 5 + [False] * 2
    assert most_inside("sort.default", (LINE,), [LINE, LINE, LINE.long()]) >= 21330432  # counted


def test_indices_are_in_doubt_where_values_are_added_up_or_masks_used() -> None:
    numbers, mask = LINE.long(), LINE > 0
    assert most_inside("index.Tensor", (LINE, [None, numbers]), [LINE, numbers]) == 0
    assert most_inside("index_put.default", (LINE, [numbers], LINE), [LINE, numbers]) == 0
    assert most_inside("index_put.default", (LINE, [numbers], LINE, True), [LINE, numbers]) >= 48 * MIB  # counted
    assert most_inside("index.Tensor", (LINE, [mask]), [LINE, mask]) >= 8 * MIB


def test_an_attention_is_fused_for_some_forms_alone() -> None:
    query, key = torch.ones(2, 4, 256, 64, device="meta"), torch.ones(2, 4, 512, 64, device="meta")
    assert is_fused(query, key)
    assert is_fused(query, key.transpose(-2, -1), is_turned=True)
    assert not is_fused(query, key[:, :1])
    assert not is_fused(query[0], key[0])
    assert not is_fused(query[..., :30], key[..., :30])
    assert not is_fused(query.double(), key.double())
    assert not is_fused(torch.ones(2, 4, 64, 256, device="meta").transpose(-2, -1), key)
