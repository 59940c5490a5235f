"""Budgets on a real CUDA device. Skipped, with the reason, where there is none."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def cuda() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    return torch


SOURCE = """
    import pytest, torch
    MIB = 1 << 20
    max_gpu_mb = pytest.mark.max_gpu_mb

    def block(size):
        return torch.empty(size * MIB, dtype=torch.uint8, device="cuda:0")

    @max_gpu_mb(500)
    def test_before_any_device():
        assert not torch.cuda.is_initialized()

    @max_gpu_mb(500)
    def test_held():
        for _ in range(3):
            block(500)

    @max_gpu_mb(500)
    def test_exceeded():
        block(502)

    @max_gpu_mb(500)
    def test_user_resets_the_peak():
        block(502)
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() < 502 * MIB

    def test_the_user_s_own_peak():
        torch.cuda.reset_peak_memory_stats()
        block(30)
        assert torch.cuda.max_memory_allocated() >= 30 * MIB

    @max_gpu_mb(500)
    def test_the_user_s_own_peak_is_the_earlier_one():
        assert torch.cuda.max_memory_allocated() >= 30 * MIB

    @max_gpu_mb(100, metric="reserved")
    def test_reserved():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        block(2000)

    @max_gpu_mb(600)
    def test_peak_of_a_backward_pass():
        weight = torch.zeros(50 * MIB // 4, device="cuda:0", requires_grad=True)
        for _ in range(4):
            (weight.exp().exp().exp()).sum().backward()
"""
EXPECTED = {
    "before_any_device": "PASSED",
    "held": "PASSED",
    "exceeded": "FAILED",
    "user_resets_the_peak": "FAILED",
    "the_user_s_own_peak": "PASSED",
    "the_user_s_own_peak_is_the_earlier_one": "PASSED",
    "reserved": "FAILED",
    "peak_of_a_backward_pass": "PASSED",
}


@pytest.mark.parametrize("options", [(), ("--gpu-leak",)], ids=["alone", "with the leak check"])
def test_budgets_of_a_real_device(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[2]), prepend=os.pathsep)
    pytester.makepyfile(test_it=SOURCE)
    plugins = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:hypothesispytest")
    result = pytester.runpytest_subprocess(*plugins, "-rA", *options)
    text = result.stdout.str()
    found = re.findall(r"^(PASSED|FAILED|ERROR) test_it\.py::test_(\w+)", text, re.MULTILINE)
    assert {name: outcome for outcome, name in found} == EXPECTED
    result.stdout.fnmatch_lines(
        ["max_gpu_mb: peak of 502.0 MiB on cuda:0 is 2.0 MiB over the budget of 500 MiB (before the test: *"]
    )
    unchecked = "gpu-leak: 1 budget was not checked: no device was used"
    result.stdout.fnmatch_lines([unchecked])
