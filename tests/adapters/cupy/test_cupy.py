"""CuPy's arrays, over host memory: no CUDA driver is needed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.skipif(find_spec("cupy") is None, reason="cupy is not installed")

ARRAYS = """
    import ctypes
    import functools
    import gc
    import sys
    import weakref
    from unittest import mock

    import cupy
    import numpy as np
    import pytest
    from cupy.cuda.memory import MemoryPointer, UnownedMemory

    def array(*shape, dtype="f4", owner=None):
        size = cupy.dtype(dtype).itemsize
        for length in shape:
            size *= length
        memory = (ctypes.c_char * max(size, 1))() if owner is None else owner
        address = ctypes.addressof(memory) if owner is None else owner.address
        return cupy.ndarray(shape, dtype, memptr=MemoryPointer(UnownedMemory(address, size, memory, 0), 0))
"""
SUITE = f"""{ARRAYS}
    KEPT, VIEWS, SHARED, CAPSULES, CALLS, OTHERS = [], [], [], [], [], []
    CACHE = {{}}
    WEIGHTS = array(512, 512)

    class Model:
        history = {{}}

        def __init__(self):
            self.weight = array(256, 256)

        @functools.lru_cache
        def size(self):
            return 1

    class Loud(cupy.ndarray):
        @property
        def shape(self):
            raise RuntimeError("user code")

        nbytes = dtype = data = shape

    def test_list():
        KEPT.append(array(256, 256))

    def test_view():
        VIEWS.append(array(1024, 1024)[:2].T)

    def test_views_and_their_base():
        whole = array(256, 256)
        SHARED.append((whole, whole[1:], whole.reshape(-1)))

    def test_class_attribute():
        Model.history[len(Model.history)] = {{"x": array(256, 256)}}

    def test_cached_method():
        Model().size()

    def test_closure():
        made = array(256, 256)
        CALLS.append(lambda: made)

    def test_exception():
        try:
            raise ValueError(array(256, 256))
        except ValueError as error:
            OTHERS.append(error)

    def test_subclass():
        OTHERS.append(array(64, 64, dtype="c16").view(Loud))

    def test_scalar():
        OTHERS.append(array(dtype="f8"))

    def test_retained():
        if "table" not in CACHE:
            CACHE["table"] = array(1024, 1024)

    def test_keeps_a_little_once():
        if "little" not in CACHE:
            CACHE["little"] = array(8)

    def test_in_a_cycle():
        cycle = [array(256, 256)]
        cycle.append(cycle)

    def test_dropped():
        array(1024, 1024)

    def test_views_dropped():
        whole = array(1024, 1024)
        whole[1:], whole.T, whole.reshape(-1)[3:]

    def test_weak():
        OTHERS.append(weakref.ref(array(256, 256)))

    def test_without_elements():
        OTHERS.append(array(0, 4))

    def test_pointer_dropped():
        array(256, 256).data

    def test_without_a_driver():
        with pytest.raises(Exception, match="Driver|driver"):
            cupy.zeros((4, 4))

    def test_reads_an_older_array():
        assert WEIGHTS[1:].shape == (511, 512)

    def test_collects():
        array(256, 256)
        gc.collect()

    def test_clears_a_cache():
        CACHE["gone"] = array(256, 256)
        del CACHE["gone"]
"""
LEAKS = {
    "test_list": (256 << 10, "test_it.KEPT[0]"),
    "test_view": (4 << 20, "test_it.VIEWS[0]"),
    "test_views_and_their_base": (256 << 10, "test_it.SHARED[0]"),
    "test_class_attribute": (256 << 10, "test_it.Model.history[0]['x']"),
    "test_cached_method": (256 << 10, "test_it.Model.size (cache key)[0].weight"),
    "test_closure": (256 << 10, "test_it.CALLS[0].__closure__[0].cell_contents"),
    "test_exception": (256 << 10, "test_it.OTHERS[0].args[0]"),
    "test_subclass": (64 << 10, "test_it.OTHERS[2]"),
    "test_scalar": (8, "test_it.OTHERS[4]"),
}
CLEAN = ["test_dropped", "test_views_dropped", "test_weak", "test_without_elements", "test_pointer_dropped",
         "test_without_a_driver", "test_reads_an_older_array", "test_collects", "test_clears_a_cache"]  # fmt: skip


@pytest.mark.parametrize("mode", ["epoch", "scan"])
def test_what_is_left_behind(run: Runner, mode: str) -> None:
    found = run(SUITE, f"--gpu-leak-scan={mode}", apart=True)
    found.result.assert_outcomes(passed=len(found.tests))
    for name, (size, holder) in LEAKS.items():
        finding = found.finding(name)
        assert (finding["kind"], finding["count"], finding["bytes"], finding["bytes_per_run"], finding["device"]) == (
            "growing", 1, size, size, "cuda:0",
        ), name  # fmt: skip
        assert finding["holder"]["text"].startswith(holder), name
    assert found.finding("test_subclass")["tensors"][0]["dtype"] == "complex128"
    assert (found.finding("test_retained")["kind"], found.finding("test_retained")["bytes"]) == ("retained", 4 << 20)
    assert found.finding("test_in_a_cycle")["kind"] == "cycle"
    assert {name: found.verdicts[name] for name in CLEAN} == dict.fromkeys(CLEAN, "clean")
    assert found.verdicts["test_keeps_a_little_once"] == "noted"
    assert found.report["environment"]["cupy"]


def test_memory_that_another_array_lent_counts_as_that_arrays(run: Runner) -> None:
    source = f"""{ARRAYS}
    KEPT = []

    class Tensor:
        memory = (ctypes.c_char * 4096)()
        address = ctypes.addressof(memory)
        __cuda_array_interface__ = {{}}

    LENDER = Tensor()

    def test_borrows():
        KEPT.append(array(32, 32, owner=LENDER))

    def test_lends():
        whole = array(32, 32)
        Tensor.address = whole.data.ptr
        KEPT.append((whole, array(32, 32, owner=LENDER)))
    """
    found = run(source, apart=True)
    assert (found.finding("test_borrows")["count"], found.finding("test_borrows")["bytes"]) == (1, 0)
    assert (found.finding("test_lends")["count"], found.finding("test_lends")["bytes"]) == (1, 4096)


def test_what_tests_put_in_the_place_of_cupy_breaks_no_run(run: Runner) -> None:
    source = f"""{ARRAYS}
    KEPT = []

    def test_mocked(monkeypatch):
        for name in ("cupy", "cupy._core.core", "cupy.cuda.memory"):
            monkeypatch.setitem(sys.modules, name, mock.MagicMock())
        KEPT.append(array(256, 256))

    def test_removed(monkeypatch):
        for name in [name for name in sys.modules if name.startswith("cupy")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "cupy", None)
        KEPT.append(array(256, 256))

    def test_asks_nothing_of_a_stand_in(monkeypatch):
        asked = mock.Mock(side_effect=RuntimeError)
        monkeypatch.setattr("cupy.cuda.memory.get_allocator", asked)
        KEPT.append(array(256, 256))

    def test_never_initialised():
        KEPT.append(cupy._core.core._ndarray_base.__new__(cupy.ndarray))
    """
    found = run(source, apart=True)
    leaking = ("test_mocked", "test_removed", "test_asks_nothing_of_a_stand_in")
    assert {name: found.verdicts[name] for name in leaking} == dict.fromkeys(leaking, "leaked")
    assert found.tests["test_mocked"]["outcome"] == "passed"
    assert not [record for record in found.tests.values() if record["verdict"] == "unchecked"]
