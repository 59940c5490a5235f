"""What only a CUDA device can show. Skipped, with the reason, where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import timeit
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.torch.devices import TorchDevices
from pytest_gpuleak.adapters.torch.settle_steps import device_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Runner

pytestmark = pytest.mark.torch
MIB = 1 << 20


@pytest.fixture(autouse=True)
def cuda() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    return torch


def test_a_tensor_left_on_the_device(run: Runner) -> None:
    found = run(
        """
        import torch
        KEPT = []

        def test_leaks():
            KEPT.append(torch.ones(256, 256, device="cuda:0"))

        def test_clean():
            assert torch.ones(256, 256, device="cuda:0").sum().item() == 65536

        def test_linear():
            torch.nn.Linear(64, 64, device="cuda:0")(torch.ones(8, 64, device="cuda:0")).sum().backward()
        """,
        apart=True,
    )
    assert found.verdicts == {"test_leaks": "leaked", "test_clean": "clean", "test_linear": "clean"}
    finding = found.finding("test_leaks")
    assert (finding["device"], finding["bytes"]) == ("cuda:0", 256 * 256 * 4)
    assert "torch.ones" in finding["tensors"][0]["created"]["code"]


def test_a_device_that_the_tests_do_not_use_is_not_touched(run: Runner) -> None:
    found = run(
        """
        import torch
        KEPT = []

        def test_leaks():
            KEPT.append(torch.ones(10))

        def test_untouched():
            assert not torch.cuda.is_initialized()
        """,
        apart=True,
    )
    assert found.verdicts == {"test_leaks": "leaked", "test_untouched": "clean"}


@pytest.fixture
def probe() -> Iterator[TorchDevices]:
    probe = TorchDevices()
    yield probe
    probe.stop()


def test_the_probe_reads_what_torch_says(cuda: Any, probe: TorchDevices) -> None:
    kept = cuda.ones(1000, device="cuda:0")
    reading = probe.read()["cuda:0"]
    assert reading.allocated == cuda.cuda.memory_allocated(0)
    assert reading.reserved == cuda.cuda.memory_reserved(0)
    assert reading.requested == cuda.cuda.memory_stats(0)["requested_bytes.all.current"]
    assert reading.active == cuda.cuda.memory_stats(0)["active_bytes.all.current"]
    assert kept.numel() == 1000


def test_a_leak_of_512_bytes_is_one_of_512_bytes(cuda: Any, probe: TorchDevices) -> None:
    cuda.ones(1, device="cuda:0")
    before = probe.read()["cuda:0"].allocated
    kept = cuda.ones(128, device="cuda:0")
    assert probe.read()["cuda:0"].allocated == before + 512
    del kept
    assert probe.read()["cuda:0"].allocated == before


def test_peaks_of_ours_and_of_the_users(cuda: Any, probe: TorchDevices) -> None:
    cuda.cuda.reset_peak_memory_stats(0)
    cuda.empty(64 * MIB, dtype=cuda.uint8, device="cuda:0")
    high = cuda.cuda.max_memory_allocated(0)
    probe.begin_peaks()
    base = cuda.cuda.memory_allocated(0)
    cuda.empty(32 * MIB, dtype=cuda.uint8, device="cuda:0")
    assert probe.read()["cuda:0"].peak == base + 32 * MIB
    assert cuda.cuda.max_memory_allocated(0) == high
    if cuda.accelerator.current_accelerator().type == "cuda":  # not beside the simulated one of other tests
        assert cuda.accelerator.max_memory_allocated(0) == high
    cuda.cuda.reset_peak_memory_stats(0)
    assert cuda.cuda.max_memory_allocated(0) == base
    assert probe.read()["cuda:0"].peak == base + 32 * MIB


def test_the_settle_steps_give_a_first_products_workspace_back(cuda: Any, probe: TorchDevices) -> None:
    linear = cuda.nn.Linear(64, 64, device="cuda:0")
    argument = cuda.ones(8, 64, device="cuda:0")
    cuda.fft.fft(argument)
    before = cuda.cuda.memory_reserved(0)
    cuda._C._cuda_clearCublasWorkspaces()
    base = probe.read()["cuda:0"].allocated
    with cuda.no_grad():
        linear(argument)
    assert probe.read()["cuda:0"].allocated > base
    for step in device_steps():
        list(step.steps())
    assert probe.read()["cuda:0"].allocated == base
    assert cuda.backends.cuda.cufft_plan_cache[0].size == 0
    assert cuda.cuda.memory_reserved(0) >= before  # the cache is the user's


@pytest.mark.skipif(
    os.environ.get("CUDA_STANDIN") == "1", reason="the stand-in runtime takes other times than a device's"
)
def test_a_reading_costs_less_than_150_microseconds(cuda: Any, probe: TorchDevices) -> None:
    kept = cuda.ones(1, device="cuda:0")
    for action in (probe.read, probe.begin_peaks):
        assert min(timeit.repeat(action, number=100, repeat=5)) / 100 < 150e-6 * cuda.cuda.device_count()
    assert kept.numel() == 1


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "absent"),
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", "True None None"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "True 1048576 1048576"),
    ],
)
def test_other_allocators(variable: str, value: str, expected: str) -> None:
    program = """
        import torch
        from pytest_gpuleak.adapters.torch.devices import TorchDevices
        probe = TorchDevices()
        assert probe.read() == {} and not torch.cuda.is_initialized()
        kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize()
        found = probe.read().get("cuda:0")
        print("absent" if found is None else f"{found.allocated >= 1 << 20} {found.requested} {found.active}")
        assert found is not None or "cuda" in probe.absent
        if torch.cuda.device_count() > 1:
            probe.begin_peaks()
            assert "cuda:1" not in probe.read() and not torch._C._cuda_hasPrimaryContext(1)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, variable: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, expected), ended.stderr
