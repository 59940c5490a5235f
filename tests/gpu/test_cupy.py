"""CuPy on a CUDA device: its pools' counters, its settle steps, and who holds what. Skipped, with the reason, without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.gpu.suites import answer_of, planted

if TYPE_CHECKING:
    from tests.conftest import Runner

MIB = 1 << 20
ASKS = "import cupy; print(cupy.cuda.runtime.getDeviceCount())"

SUITE = """
    import cupy
    import cupyx
    import pytest

    KEPT, VIEWS, POINTERS, ASYNCHRONOUS, LENT, TABLE = [], [], [], [], [], {}

    def test_first_use():
        assert float((cupy.ones((256, 256)) @ cupy.ones((256, 256))).sum()) == 256**3

    def test_list():
        KEPT.append(cupy.ones((256, 256), "f4"))

    def test_view():
        VIEWS.append(cupy.ones((1024, 1024), "f4")[:2].T)

    def test_pointer():
        POINTERS.append(cupy.cuda.alloc(1 << 20))

    def test_asynchronous_pool():
        with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
            ASYNCHRONOUS.append(cupy.ones(1 << 18, "f4"))

    def test_retained():
        if not TABLE:
            TABLE["weights"] = cupy.ones((1024, 1024), "f4")

    def test_lent_to_torch():
        torch = pytest.importorskip("torch")
        LENT.append(torch.from_dlpack(cupy.ones((512, 512), "f4")))

    def test_lent_by_torch():
        torch = pytest.importorskip("torch")
        LENT.append(cupy.from_dlpack(torch.ones(512, 512, device="cuda:0")))

    def test_cycle():
        cycle = [cupy.ones((256, 256), "f4")]
        cycle.append(cycle)

    def test_transforms():
        cupy.fft.fft2(cupy.ones((256, 256))).sum()
        for size in range(700, 770, 7):
            cupy.fft.fft(cupy.ones(size))

    def test_solvers():
        cupy.linalg.solve(cupy.eye(64) * 2, cupy.ones(64))
        cupy.linalg.svd(cupy.ones((32, 32)))

    def test_kernels():
        cupy.ElementwiseKernel("float32 x", "float32 y", "y = x * x", "squared")(cupy.ones(10, "f4"))
        source = 'extern "C" __global__ void add(float* a) { a[threadIdx.x] += 1; }'
        cupy.RawKernel(source, "add")((1,), (32,), (cupy.ones(32, "f4"),))

    def test_random():
        cupy.random.rand(1000).sum()

    def test_stream():
        with cupy.cuda.Stream(non_blocking=True) as stream:
            (cupy.ones(100) * 2).sum()
            stream.synchronize()

    def test_captured():
        stream = cupy.cuda.Stream(non_blocking=True)
        values = cupy.ones(100, "f4")
        with stream:
            stream.begin_capture()
            values *= 2
            graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()

    def test_pinned():
        cupyx.empty_pinned((1024, 1024))
        cupy.asnumpy(cupy.ones((512, 512)))

    def test_sorting():
        cupy.unique(cupy.sort(cupy.random.rand(10000)))

    @pytest.mark.max_gpu_mb(16)
    def test_budget():
        KEPT.append(cupy.ones(8 << 20, "f4"))
"""
LEAKED = {
    "test_list": ("growing", 256 << 10, "test_it.KEPT"),
    "test_view": ("growing", 4 * MIB, "test_it.VIEWS"),
    "test_pointer": ("unattributed", MIB, None),
    "test_asynchronous_pool": ("growing", MIB, "test_it.ASYNCHRONOUS"),
    "test_retained": ("retained", 4 * MIB, "test_it.TABLE"),
    "test_lent_to_torch": ("growing", MIB, "test_it.LENT"),
    "test_lent_by_torch": ("growing", MIB, "test_it.LENT"),
}


@pytest.fixture(scope="module")
def cupy_device() -> None:
    """Skips without CuPy or a device, which another process is asked for."""
    if answer_of(ASKS) in ("", "0"):
        pytest.skip("CuPy finds no CUDA device on this machine")


@pytest.mark.usefixtures("cupy_device")
def test_leaks_and_clean_tests_on_a_device(run: Runner) -> None:
    found = run(SUITE, apart=True)
    assert planted(found) == LEAKED
    others = {name: verdict for name, verdict in found.verdicts.items() if name not in LEAKED}
    assert others.pop("test_cycle") == "noted"
    assert others.pop("test_budget") == "unchecked"  # over its budget, it has failed by itself
    assert set(others.values()) == {"clean"}


@pytest.mark.usefixtures("cupy_device")
def test_a_device_that_the_tests_do_not_use_is_not_touched(run: Runner) -> None:
    found = run(
        """
        import cupy

        KEPT = []

        def test_on_the_host():
            KEPT.append(bytearray(12 << 20))

        def test_untouched():
            try:
                context = cupy.cuda.driver.ctxGetCurrent()
            except cupy.cuda.driver.CUDADriverError as error:
                assert "NOT_INITIALIZED" in str(error)
            else:
                assert context == 0
        """,
        apart=True,
    )
    assert found.verdicts == {"test_on_the_host": "leaked", "test_untouched": "clean"}
