"""A test that runs out of memory because an earlier one has left most of the device in use."""

import torch

HISTORY = []


def test_culprit():
    HISTORY.append(torch.ones(60 << 20, dtype=torch.uint8, device="cuda"))


def test_victim():
    torch.empty(torch.cuda.mem_get_info()[1] + 1, dtype=torch.uint8, device="cuda")


def test_clean():
    torch.ones(3, device="cuda")
