"""Budgets end to end: real tensors on a simulated accelerator, counted by the probe that counts on real ones."""

from __future__ import annotations

import importlib.util
import pathlib
import re

import pytest

# Not `pytest.mark.torch`: that imports it into this process too, which takes seconds.
no_torch = importlib.util.find_spec("torch") is None
pytestmark = [
    pytest.mark.skipif(no_torch, reason="torch is not installed for this Python"),
    pytest.mark.slow,
    pytest.mark.usefixtures("forked"),
]

SOURCE = """
    import pytest, torch
    from tests.support import simgpu
    simgpu.install()
    MIB = 1 << 20
    max_gpu_mb = pytest.mark.max_gpu_mb

    def block(size, device="simgpu:0"):
        return torch.empty(int(size * MIB), dtype=torch.uint8, device=device)

    @max_gpu_mb(500)
    def test_held():
        for _ in range(3):
            block(500)

    @pytest.fixture
    def batches():
        first = block(300)
        return [first[:10], first, first[:20], block(50), block(50), block(100)[:10]]

    @max_gpu_mb(500)
    def test_exceeded(batches):
        block(2)

    @max_gpu_mb(500)
    def test_user_resets_the_peak():
        block(502)
        torch.simgpu.reset_peak_memory_stats(0)
        assert torch.simgpu.max_memory_allocated(0) < 502 * MIB

    def test_the_user_s_own_peak_is_left_alone():
        torch.simgpu.reset_peak_memory_stats(0)
        block(30)
        assert torch.simgpu.max_memory_allocated(0) >= 30 * MIB

    @max_gpu_mb(500)
    def test_the_user_s_own_peak_is_the_earlier_one():
        assert torch.simgpu.max_memory_allocated(0) >= 30 * MIB

    @max_gpu_mb(100, metric="reserved")
    def test_reserved():
        block(600, "simgpu:1")

"""
EXPECTED = {
    "held": "PASSED",
    "exceeded": "FAILED",
    "user_resets_the_peak": "FAILED",
    "the_user_s_own_peak_is_left_alone": "PASSED",
    "the_user_s_own_peak_is_the_earlier_one": "PASSED",
    "reserved": "FAILED",
}


def test_budgets_on_a_simulated_accelerator(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[3]))
    pytester.makepyfile(test_it=SOURCE)
    plugins = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:hypothesispytest")
    result = pytester.runpytest_subprocess(*plugins, "-rA")
    text = result.stdout.str()
    found = re.findall(r"^(PASSED|FAILED|ERROR) test_it\.py::test_(\w+)", text, re.MULTILINE)
    assert {name: outcome for outcome, name in found} == EXPECTED
    assert re.findall(r"^max_gpu_mb: (.*)", text, re.MULTILINE) == FAILURES
    alive = "alive at the end of the call on simgpu:0, largest first:"
    sizes = [
        "  300.0 MiB: uint8 [[]314572800], 1 x",
        "  100.0 MiB: uint8 [[]104857600], 1 x",
        "  100.0 MiB: uint8 [[]52428800], 2 x",
    ]
    result.stdout.fnmatch_lines([alive, *sizes], consecutive=True)


FAILURES = [
    "peak of 502.0 MiB on simgpu:0 is 2.0 MiB over the budget of 500 MiB (before the test: 0 bytes allocated)",
    "peak of 502.0 MiB on simgpu:0 is 2.0 MiB over the budget of 500 MiB (before the test: 0 bytes allocated)",
    "reserved peak of 600.0 MiB on simgpu:1 is 500.0 MiB over the budget of 100 MiB (before the test: 0 bytes reserved)",
]
"""In the order of the file; the simulated allocator hands out whole MiB of even number as they are asked for."""
