"""Tests that empty the cache and reset torch's statistics themselves."""

import torch

KEPT = []
MIB = 1 << 20


def test_leak_before():
    KEPT.append(torch.ones(20 * MIB, dtype=torch.uint8, device="cuda"))


def test_empty_cache():
    torch.ones(30 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < 50 * MIB * 2


def test_reset_peak():
    before = torch.cuda.memory_allocated()
    torch.ones(30 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.max_memory_allocated() >= before + 30 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()


def test_reset_accumulated():
    torch.cuda.reset_accumulated_memory_stats()
    torch.ones(3, device="cuda")


def test_reset_and_leak():
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    KEPT.append(torch.ones(10 * MIB, dtype=torch.uint8, device="cuda"))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def test_clean():
    torch.ones(3, device="cuda")
