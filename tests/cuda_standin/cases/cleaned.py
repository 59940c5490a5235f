"""A failed test that keeps most of the device through its traceback, and a test that needs the memory after it."""

import torch


def half_of_the_device():
    return torch.empty(torch.cuda.mem_get_info()[1] // 5 * 3, dtype=torch.uint8, device="cuda")


def test_fails():
    data = half_of_the_device()
    assert data is None


def test_needs_the_memory():
    half_of_the_device()
