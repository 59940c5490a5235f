"""A failed test that keeps most of the device through its traceback, and a test that needs the memory after it."""

import functools

import torch


@functools.cache
def more_than_half():
    """Bytes: of what is free at first, since others may use the device."""
    return torch.cuda.mem_get_info()[0] // 5 * 3


def most_of_the_device():
    return torch.empty(more_than_half(), dtype=torch.uint8, device="cuda")


def test_fails():
    data = most_of_the_device()
    assert data is None


def test_needs_the_memory():
    most_of_the_device()
