"""NumPy's arrays that the collector does not track are met by a walk, and named, whatever of NumPy's keeps them."""

from __future__ import annotations

import ctypes
import itertools
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

np: Any = pytest.importorskip("numpy")

from pytest_gpuleak.adapters.numpy.framework import NumpyFramework  # noqa: E402
from pytest_gpuleak.engine.host_walks import TracedLines  # noqa: E402
from pytest_gpuleak.explain.untracked_arrays import HeapArrays, explain_arrays  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("small_heap")

ELEMENTS = 2**17


class Model:
    """An object with an array, in a cycle with itself."""

    def __init__(self, weights: Any) -> None:
        self.weights = weights
        self.cycle = self


KEEPERS: dict[str, tuple[Callable[[Any], object], str | None]] = {
    "tuple in a dict": (lambda array: {"x": (array,)}, "['x'][0]"),
    "array of objects": (lambda array: np.array([array, None], dtype=object), "[0]"),
    "dict in an array of objects": (lambda array: np.array([{"x": array}, None], dtype=object), "[0]['x']"),
    "attribute": (Model, ".weights"),
    "flat": (lambda array: array.flat, ".base"),
    "unseen": (lambda array: {"x": (array.flat,)}, "['x'][0].base"),
    "enumerated": (np.ndenumerate, ".iter.base"),
    "nditer": (lambda array: np.nditer([array, None]), ".operands[0]"),
    "nested": (lambda array: np.nested_iters(array.reshape(1, -1), [[0], [1]]), "[1].operands[0]"),
    "broadcast": (lambda array: np.broadcast(array, np.ones(1)), ".iters[0].base"),
    "structured scalar": (lambda array: array.view([("a", "f8")])[5], ".base"),
    "record": (lambda array: array.view([("a", "f8")]).view(np.recarray)[5], ".base"),
    "iterator": (lambda array: itertools.chain(iter(array)), None),
    "memoryview": (memoryview, None),
    "ctypes": (lambda array: array.ctypes, None),
    "pointer": (lambda array: array.ctypes.data_as(ctypes.POINTER(ctypes.c_double)), None),
    "method": (lambda array: array.sum, None),
    "strides": (lambda array: np.lib.stride_tricks.as_strided(array, (10,), (8,)), None),
}
"""What keeps an array, and how it is reached from there where that can be said."""
KEEP_NOTHING: list[Callable[[Any], object]] = [lambda array: array.__array_interface__, lambda array: array[5]]


def test_whatever_keeps_an_array_is_met_and_named(app: Any) -> None:
    sizes = {8 * (ELEMENTS + number): name for number, name in enumerate(KEEPERS)}
    for (keep, _), size in zip(KEEPERS.values(), sizes, strict=True):
        app.CACHE[sizes[size]] = [keep(np.ones(size // 8))]
    app.HISTORY += [keep(np.ones(2 * ELEMENTS)) for keep in KEEP_NOTHING]
    closed = np.nditer(np.ones(2 * ELEMENTS))
    closed.close()
    app.HISTORY.append(closed)
    heap = HeapArrays([])
    found, all_sizes = heap.find(lambda _, size: size >= 8 * ELEMENTS)
    assert all_sizes is not None
    holders = explain_arrays(found, (), NumpyFramework().reference_finders())
    named: dict[str, set[str]] = {name: set() for name in KEEPERS}
    for array in found:
        reading = heap.read(array)
        assert reading is not None
        name = sizes[reading.storage_bytes]
        text = holders[id(array)].holder.text
        assert text.startswith(f"leaky_app.CACHE[{name!r}][0]"), text
        named[name].add(text.removeprefix(f"leaky_app.CACHE[{name!r}][0]"))
    found.clear()
    for name, (_, path) in KEEPERS.items():
        assert named[name], name
        assert path is None or path in named[name], (name, named[name])


@pytest.mark.parametrize(
    "keep", [lambda array: array, KEEPERS["dict in an array of objects"][0]], ids=["array", "objects"]
)
@pytest.mark.parametrize("by_user", [False, True])
def test_lines_are_traced_and_the_user_s_tracing_goes_on(
    app: Any, by_user: bool, keep: Callable[[Any], object]
) -> None:
    if tracemalloc.is_tracing():
        pytest.skip("the tests are traced")
    heap, lines = HeapArrays([]), TracedLines(__file__.__eq__)
    if by_user:
        tracemalloc.start()
    try:
        before = heap.walk()
        assert before is not None
        lines.start()
        app.HISTORY.append(keep(np.zeros(ELEMENTS)))
        (line,) = lines.of_new(heap, before.alive()).values()
        assert line.code == "app.HISTORY.append(keep(np.zeros(ELEMENTS)))"
        lines.stop()
        assert tracemalloc.is_tracing() is by_user
    finally:
        tracemalloc.stop()
