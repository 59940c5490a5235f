"""Compute what CUDA's kernels take inside an operator, where the CPU's take nothing, by the sizes that torch's code has.

Each rule names its source below aten/src/ATen/native. All results are bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

MULTIPROCESSORS: Final = 108
"""An A100's. Reductions take the larger buffers the more of them a device has: up to a third more on an H100 (132)."""

_THREADS: Final = 2048
"""Threads that a multiprocessor runs at once."""

_REDUCTIONS: Final = frozenset(
    f"{name}.{overload}"
    for name, overload in (
        ("sum", "dim_IntList"), ("sum", "default"), ("mean", "dim"), ("mean", "default"), ("amax", "default"),
        ("amin", "default"), ("norm", "ScalarOpt_dim"), ("linalg_vector_norm", "default"), ("var", "correction"),
        ("var_mean", "correction"), ("std", "correction"), ("argmax", "default"), ("argmin", "default"),
        ("prod", "default"), ("prod", "dim_int"), ("any", "default"), ("all", "default"), ("max", "default"), ("min", "default"),
    )
)  # fmt: skip
_WIDE: Final = {"var": 4, "var_mean": 4, "std": 4, "argmax": 4, "argmin": 4}
"""Numbers of 4 bytes that a value of these has while it is accumulated; of the others one."""

_EMBEDDING_SORTED: Final = 3072
"""Indices up to which an embedding's gradient is made without sorting them (cuda/Embedding.cu)."""

_ROWS_A_THREAD: Final = 10
"""`NROWS_PER_THREAD` of cuda/EmbeddingBackwardKernel.cu."""

_FEW_ROWS: Final = 25
"""Rows up to which distances are made one by one (native/Distance.cpp)."""

_UNKNOWN: Final = ("fft", "linalg", "lu_", "qr", "svd", "eig", "cholesky", "triangular_solve", "ctc", "sort", "topk",
                   "unique", "median", "mode", "kthvalue", "embedding_bag", "histc", "bincount", "multinomial", "nonzero",
                   "masked_select", "masked_scatter", "trilinear", "matrix_exp", "soft_margin_loss",
                   "transformer_encoder_layer_fwd", "native_multi_head_attention")  # fmt: skip
"""What the names of operators begin with, below underscores, whose kernels take an amount that no rule here knows."""

_UNKNOWN_FACTOR: Final = 8
"""What such an operator takes at the most, as a multiple of its arguments and results. Sorting 2**20 floats takes 4 times."""


_CAST_ON_CUDA: Final = frozenset((
    "native_layer_norm", "native_group_norm", "softmax", "log_softmax", "exp", "expm1", "log", "log10", "log1p", "log2", "pow",
    "norm", "linalg_vector_norm", "sum", "prod", "reciprocal", "rsqrt", "softplus", "logsumexp", "cumsum", "cumprod", "acos", "asin", "cosh", "erfinv", "sinh", "tan",
))  # fmt: skip
_CAST_ON_THE_CPU: Final = (
    "grid_sampler",
    "reflection_pad",
    "replication_pad",
    "avg_pool3d",
    "max_unpool",
    "adaptive_avg_pool3d",
)
"""What autocast computes in single precision on one of both alone, below underscores (aten/src/ATen/autocast_mode.cpp)."""

_ATTENTION_GRADIENT: Final = "scaled_dot_product_flash_attention_for_cpu_backward"

_INDEXING: Final = ("index", "index_put", "index_put_impl_", "unsafe_index", "unsafe_index_put")
"""Names of operators that are given indices or masks, below underscores."""

_INDEX_FACTOR: Final = 8
"""What an operator takes at the most that sorts indices, or looks for what a mask has, as a multiple of them as numbers."""


def taken_inside(name: str, args: Sequence[Any], made: Any) -> int:
    """Return what an operator takes beside its results, of which the first is `made`, and gives back when it ends."""
    if name in _REDUCTIONS:
        copy = 0 if name.startswith("arg") else _copy_of_another_type(args[0], made)
        return (_reduction(name, args) or 0) + copy
    if name == "_softmax_backward_data.default":  # the product of gradient and result (cuda/SoftMax.cu)
        return _bytes_of(args[0])
    if name == "embedding_dense_backward.default":
        return _embedding_gradient(args[0], args[1], int(args[2]))
    return _by_distances(name, args) if "dist_" in name or "dist." in name else 0


def _by_distances(name: str, args: Sequence[Any]) -> int:
    if name == "_euclidean_dist.default" or (name == "_cdist_forward.default" and _is_by_product(*args)):
        return sum(_bytes_of(rows) + 2 * _bytes_of(rows[..., :1]) for rows in args[:2])  # two values more for each row
    if name == "_cdist_backward.default":  # a gradient for each pair of rows (cuda/DistanceKernel.cu)
        return _sum_of_pairs(int(args[2].shape[-2]), args[1])
    if name == "_pdist_backward.default":
        return _sum_of_pairs(max(1, int(args[1].shape[0]) - 1), args[1])
    return 0


def _is_by_product(first: Any, second: Any, p: float, mode: int | None) -> bool:
    """Return whether distances are made by a product of the rows (native/Distance.cpp)."""
    return p == 2 and (mode == 1 or (not mode and max(first.shape[-2], second.shape[-2]) > _FEW_ROWS))


def _sum_of_pairs(count: int, rows: Any) -> int:
    """Return a gradient of each of some rows for each of `count` others, and what adding them up takes."""
    return count * _bytes_of(rows) + reduction_buffer(count, int(rows.numel()), 4, is_inner=False)


def _copy_of_another_type(tensor: Any, made: Any) -> int:
    """Return the copy of whole numbers that are added up in another type, as those of a mask (native/ReduceOps.cpp)."""
    is_read_as_it_is = tensor.dtype.is_floating_point or tensor.dtype is made.dtype
    return 0 if is_read_as_it_is or made.element_size() == 1 else int(tensor.numel() * made.element_size())


def most_inside(name: str, args: Sequence[Any], tensors: Sequence[Any]) -> int:
    """Return a bound of what an operator takes inside, by its `args` and all `tensors` of it, that no rule knows; 0 if one does."""
    base = name.partition(".")[0].strip("_")
    if base in _INDEXING:
        return _most_of_indices([one for one in args[1] if one is not None], tensors, is_sum=len(args) > 3 and args[3])
    if name in _REDUCTIONS and _reduction(name, args) is None:
        outputs = max(1, int(tensors[-1].numel()))
        item = 4 * _WIDE.get(base, 1)
        inputs = int(args[0].numel()) // outputs
        return max(reduction_buffer(inputs, outputs, item, is_inner=one) for one in (True, False))
    if base == _ATTENTION_GRADIENT:
        _, query, key = args[:3]
        return most_in_attention_gradient(query.shape[0] * query.shape[1], query.shape[2], key.shape[2], query.shape[3])
    if base.startswith(_UNKNOWN) and name != "linalg_vector_norm.default":
        return _UNKNOWN_FACTOR * sum(map(_bytes_of, tensors))
    return 0


def _most_of_indices(indices: Sequence[Any], tensors: Sequence[Any], *, is_sum: bool) -> int:
    """Return a bound of what indexing by masks takes, and by numbers where values of one place are added up (cuda/Indexing.cu)."""
    masks = [one for one in indices if one.element_size() == 1]
    sorted_ = indices if is_sum else masks
    numbers = sum(int(one.numel()) * (8 * max(1, one.dim()) if one.element_size() == 1 else 8) for one in sorted_)
    return _INDEX_FACTOR * numbers + (max(map(_bytes_of, tensors)) if is_sum else 0)


def is_cast_otherwise(name: str, *, is_half: bool, is_widened: bool) -> bool:
    """Return whether autocast has CUDA compute in another precision than the CPU, for what it `is_widened` to single precision."""
    base = name.partition(".")[0].strip("_")
    if is_half:
        return base in _CAST_ON_CUDA or base.startswith("upsample")
    return is_widened and base.startswith(_CAST_ON_THE_CPU)


def is_fused(query: Any, key: Any, mask: Any = None, *, is_turned: bool = False) -> bool:
    """Return whether CUDA has a fused kernel for an attention, by the constraints of its kernel for all devices.

    The last two dimensions of the key may have been turned (transformers/cuda/sdp_utils.cpp).
    """
    if mask is not None and mask.stride(-1) != 1:
        return False
    last, width = (-2, key.shape[-2]) if is_turned else (-1, key.shape[-1])
    return bool(
        query.dim() == key.dim() == 4
        and query.shape[:2] == key.shape[:2]
        and query.shape[-1] == width
        and width * query.element_size() % 16 == 0
        and query.stride(-1) == key.stride(last) == 1
        and query.element_size() < 8
    )


def most_in_attention_gradient(batch: int, rows: int, keys: int, width: int) -> int:
    """Return a bound of what the backward pass of a fused attention takes inside.

    These are its three gradients in single precision, padded, and a copy of the one that it is given (transformers/cuda/attention_backward.cu).
    """
    return 4 * batch * (_multiple(rows, 128) + _multiple(keys, 128)) * 2 * (_multiple(width, 32) + 1)


def _multiple(number: int, of: int) -> int:
    return -(-number // of) * of


def attention_bytes(result: Any) -> tuple[int, int]:
    """Return what a fused attention keeps: its result, and a sum of exponentials in single precision for each row."""
    return _bytes_of(result), 4 * result.numel() // max(1, result.shape[-1])


def _bytes_of(value: Any) -> int:
    numel = getattr(value, "numel", None)
    return 0 if numel is None else int(numel()) * int(value.element_size())


def _reduction(name: str, args: Sequence[Any]) -> int | None:
    """Return the buffer of a reduction; None for strides without a rule."""
    tensor = args[0]
    rank, size = tensor.dim(), int(tensor.numel())
    given = args[1] if len(args) > 1 else None
    if name in ("norm.ScalarOpt_dim", "linalg_vector_norm.default"):
        given = args[2] if len(args) > 2 else None
    if isinstance(given, int) and not isinstance(given, bool):
        given = [given]
    reduced = (
        sorted({dim % rank for dim in given})
        if isinstance(given, (list, tuple)) and given and rank
        else list(range(rank))
    )
    if not size:
        return 0
    if not tensor.is_contiguous():
        return None
    inputs = 1
    for dim in reduced:
        inputs *= int(tensor.shape[dim])
    outputs = size // inputs
    item = 4 * _WIDE.get(name.partition(".")[0], 1)
    if reduced == list(range(rank - len(reduced), rank)):
        return reduction_buffer(inputs, outputs, item, is_inner=True)
    if reduced == list(range(len(reduced))):
        return reduction_buffer(inputs, outputs, item, is_inner=False)
    return None


def reduction_buffer(inputs: int, outputs: int, item: int, *, is_inner: bool, processors: int = MULTIPROCESSORS) -> int:
    """Return the buffer in which blocks of threads combine what they have reduced, `inputs` values to each of `outputs`.

    Values that are combined take `item` bytes; `is_inner` if the values of one output lie side by side (cuda/Reduce.cuh,
    `setReduceConfig`).
    """
    width_of_vector = 1
    if is_inner:
        first, second = inputs, outputs
        if outputs == 1 and first > 128:
            first //= 4
    else:
        first, second = outputs, inputs
        width_of_vector = next(width for width in (4, 2, 1) if outputs % width == 0)
        first //= width_of_vector
    most = 512 // width_of_vector
    across = min(most, _power_below(first))
    along = min(most, _power_below(second))
    width = min(across, 32)
    height = min(along, most // width)
    width = min(across, most // height)
    step_in, step_out = (width, 1) if is_inner else (1, width)
    is_split = _parts(inputs, step_in) >= min(height * 16, 256)
    if is_split:
        step_in *= height
    else:
        step_out *= height
    grid = _parts(outputs // width_of_vector, step_out)
    each = _parts(inputs, step_in)
    at_once = processors * (_THREADS // (width * height))
    if not is_split or each < 256 or grid > at_once:
        return 0
    blocks = max(min(_parts(at_once, grid), _parts(each, 16)), _parts(each, 256))
    if blocks <= 1:
        return 0
    size = item * outputs * blocks
    return size if is_inner else size * width * width_of_vector


def _embedding_gradient(gradient: Any, indices: Any, rows: int) -> int:
    """Return the sorted indices, and a partial sum for every ten of one row, of cuda/EmbeddingBackwardKernel.cu."""
    count = int(indices.numel())
    if count <= _EMBEDDING_SORTED:
        return 0
    segments = min(count, rows)
    partial = count // _ROWS_A_THREAD + segments
    width = int(gradient.numel()) // count
    accumulated = max(4, int(gradient.element_size()))
    return 4 * count * int(indices.element_size()) + partial * (width * accumulated + int(indices.element_size()))


def _power_below(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


def _parts(number: int, size: int) -> int:
    return -(-number // size)
