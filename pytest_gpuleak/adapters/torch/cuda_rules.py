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

_UNKNOWN: Final = ("fft", "linalg", "lu_", "qr", "svd", "eig", "cholesky", "triangular_solve", "ctc", "sort", "topk",
                   "unique", "median", "mode", "kthvalue", "_embedding_bag", "histc", "bincount", "multinomial")  # fmt: skip
"""What the names of operators begin with, below underscores, whose kernels take an amount that no rule here knows."""

_UNKNOWN_FACTOR: Final = 8
"""What such an operator takes at the most, as a multiple of its arguments and results. Sorting 2**20 floats takes 4 times."""


def taken_inside(name: str, args: Sequence[Any]) -> int:
    """Return what an operator takes beside its results and gives back when it ends."""
    if name in _REDUCTIONS:
        return _reduction(name, args)
    if name == "_softmax_backward_data.default":  # the product of gradient and result (cuda/SoftMax.cu)
        return _bytes_of(args[0])
    if name == "embedding_dense_backward.default":
        return _embedding_gradient(args[0], args[1], int(args[2]))
    return 0


def is_unknown(name: str) -> bool:
    """Return whether an operator's kernels take an amount that no rule knows."""
    return name.lstrip("_").startswith(_UNKNOWN) and name != "linalg_vector_norm.default"


def most_inside(args: Sequence[Any], made: Sequence[Any]) -> int:
    """Return a bound of what an operator without a rule takes inside."""
    return _UNKNOWN_FACTOR * sum(_bytes_of(one) for one in (*args, *made))


def attention_bytes(result: Any) -> tuple[int, int]:
    """Return what a fused attention keeps: its result, and a sum of exponentials in single precision for each row."""
    return _bytes_of(result), 4 * result.numel() // max(1, result.shape[-1])


def _bytes_of(value: Any) -> int:
    numel = getattr(value, "numel", None)
    return 0 if numel is None else int(numel()) * int(value.element_size())


def _reduction(name: str, args: Sequence[Any]) -> int:
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
    if not size or not tensor.is_contiguous():
        return 0
    inputs = 1
    for dim in reduced:
        inputs *= int(tensor.shape[dim])
    outputs = size // inputs
    item = 4 * _WIDE.get(name.partition(".")[0], 1)
    if reduced == list(range(rank - len(reduced), rank)):
        return reduction_buffer(inputs, outputs, item, is_inner=True)
    if reduced == list(range(len(reduced))):
        return reduction_buffer(inputs, outputs, item, is_inner=False)
    return 0


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
