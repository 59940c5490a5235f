"""Budgets of memory, beside a leak and after resets by the test."""

import pytest
import torch

KEPT = []
MIB = 1 << 20


def block(size):
    return torch.empty(size * MIB, dtype=torch.uint8, device="cuda")


@pytest.mark.max_gpu_mb(50)
def test_within():
    block(50)


@pytest.mark.max_gpu_mb(50)
def test_exceeded():
    block(52)


@pytest.mark.max_gpu_mb(50)
def test_within_and_leaks():
    KEPT.append(block(20))


@pytest.mark.max_gpu_mb(50)
def test_exceeded_and_reset():
    block(52)
    torch.cuda.reset_peak_memory_stats()


@pytest.mark.max_gpu_mb(50)
def test_within_after_the_leak():
    block(50)


@pytest.mark.max_gpu_mb(41, device="cuda:0")
def test_in_a_graph():
    graph = torch.cuda.CUDAGraph()
    x = block(20)
    with torch.cuda.graph(graph):
        y = x + 1
    assert y.shape == x.shape
