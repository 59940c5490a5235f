"""What is read of NumPy's arrays: the memory behind them, its size, its owner."""

from __future__ import annotations

import gc
import mmap
from typing import TYPE_CHECKING, Any

import pytest

np: Any = pytest.importorskip("numpy")

from pytest_gpuleak.adapters.numpy.framework import MappedArrays, NumpyFramework  # noqa: E402
from pytest_gpuleak.adapters.numpy.memory import MAX_ELEMENTS, Ndarrays  # noqa: E402

if TYPE_CHECKING:
    import pathlib

READER = Ndarrays()


class Foreign:
    """An array of another framework."""

    def __init__(self) -> None:
        self.memory = np.ones(8)
        self.__array_interface__ = self.memory.__array_interface__


def size_of(array: object) -> int:
    ((_, size),) = READER.sizes([array], [])
    return size


@pytest.mark.parametrize(
    "make",
    [
        lambda owner: owner,
        lambda owner: owner[3:5],
        lambda owner: owner[::2].reshape(-1, 1).T,
        lambda owner: owner.view(np.matrix),
        lambda owner: np.lib.stride_tricks.sliding_window_view(owner, 10),
        lambda owner: np.broadcast_to(owner[:1], (10**9,)),
        lambda owner: np.frombuffer(memoryview(owner)),
    ],
    ids=["owner", "slice", "strided", "matrix", "windows", "broadcast", "buffer"],
)
def test_views_share_the_memory_of_their_owner(make: Any) -> None:
    owner = np.ones(1000)
    view = make(owner)
    assert READER.sizes([view, owner], []) == [(id(owner), 8000)] * 2
    reading = READER.read(view, [])
    assert reading is not None
    assert (reading.storage, reading.storage_bytes, reading.device) == (id(owner), 8000, "cpu")
    assert reading.shape == view.shape
    assert READER.memory(view)[:2] == (owner.ctypes.data, 8000)
    assert READER.allocated(view) is owner


def test_a_buffer_of_python_owns_the_memory() -> None:
    data = bytearray(4096)
    array = np.frombuffer(data, dtype="uint8")[:16]
    assert READER.sizes([array], []) == [(id(data), 4096)]
    assert READER.allocated(array) is data


def test_memory_of_another_frameworks_array_is_its_own() -> None:
    foreign = Foreign()
    array = np.asarray(foreign)
    assert array.base is foreign
    assert READER.sizes([array], [Foreign]) == [(0, 0)]
    assert READER.read(array, [Foreign]) is None
    assert READER.read(array, []) is not None


def test_mapped_memory_is_no_memory_of_the_heap(tmp_path: pathlib.Path) -> None:
    mapped = np.memmap(tmp_path / "x.bin", dtype="uint8", mode="w+", shape=(4096,))
    anonymous = np.frombuffer(mmap.mmap(-1, 4096), dtype="uint8")
    assert READER.sizes([mapped, mapped[5:], anonymous], []) == [(0, 0)] * 3
    reading = MappedArrays().read(mapped[5:])
    assert reading is not None
    assert (reading.device, reading.storage_bytes, reading.file) == ("disk", 4096, str(tmp_path / "x.bin"))
    # A result of that class with memory of its own.
    own = (mapped + 1).view(np.memmap)
    assert MappedArrays().read(own) is None
    assert size_of(own) == 4096


def test_a_handle_dies_with_the_memory() -> None:
    owner = np.ones(1000)
    view = owner[:3]
    handle = READER.hold(view)
    assert handle.storage == id(owner)
    del owner
    gc.collect()
    assert handle.alive()
    del view
    assert not handle.alive()


def test_a_subclass_runs_no_code() -> None:
    class Hostile(np.ndarray):  # type: ignore[misc]
        @property
        def base(self) -> object:
            raise AssertionError

        nbytes = shape = dtype = size = flags = base

    array = np.ones(100).view(Hostile)
    reading = READER.read(array, [])
    assert reading is not None
    assert (reading.storage_bytes, reading.shape, reading.dtype) == (800, (100,), "float64")
    assert READER.elements(array) == []


def test_elements_of_arrays_of_objects() -> None:
    inner = np.ones(3)
    nested = np.empty((2, 2), dtype=object)
    nested[1, 0] = inner
    assert [value for value in READER.elements(nested) if value is not None] == [inner]
    assert READER.elements(np.array(inner, dtype=object)) == [1.0, 1.0, 1.0]
    assert READER.elements(np.full(MAX_ELEMENTS + 1, None)) == []
    assert READER.elements(np.ones(3)) == []


@pytest.mark.parametrize(
    ("shape", "dtype", "places"),
    [
        ((), "O", ["[()]"]),
        ((2, 1), "O", ["[0, 0]", "[1, 0]"]),
        (1, [("n", "i4"), ("x", "O")], ["[0]['x']"]),
        ((), [("n", "i4"), ("in", [("x", "O"), ("y", "f4")])], ["[()]['in']['x']"]),
        (1, [("n", "i4")], []),
        (1, [("many", "O", (2,))], []),
    ],
)
def test_objects_are_found_at_their_places(shape: Any, dtype: Any, places: list[str]) -> None:
    found = list(READER.placed_elements(np.zeros(shape, dtype)))
    assert [place for place, _ in found] == places
    assert all(value == 0 for _, value in found)


@pytest.mark.parametrize("dtype", ["O", "U5", "S3", "M8[ns]", "V7", "?", "complex64", ">f4", "T"])
def test_any_dtype_is_read(dtype: str) -> None:
    if dtype == "T" and not hasattr(np.dtypes, "StringDType"):
        pytest.skip("this numpy has no StringDType")
    array = np.zeros(1000, dtype=dtype)
    reading = READER.read(array[:10], [])
    assert reading is not None
    assert (reading.shape, reading.storage_bytes) == ((10,), array.nbytes)
    assert reading.dtype
    assert READER.read(array[:0], []) is not None
    assert READER.read(np.zeros(0, dtype=dtype), []) is None


def test_structured_types_are_named_shortly() -> None:
    reading = READER.read(np.zeros(3, dtype=[("first", "f4"), ("second", "i8")]), [])
    assert reading is not None
    assert reading.dtype == "structured"


def test_the_framework_is_known_by_its_version() -> None:
    assert NumpyFramework().version() == np.__version__
